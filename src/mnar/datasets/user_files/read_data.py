"""Recognise what the user's data are, and read them with the right reader."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mnar.datasets.npz_file import read_npy
from mnar.datasets.user_files.arrays import read_arrays
from mnar.datasets.user_files.class_folders import read_class_folders
from mnar.datasets.user_files.columns import PARQUET
from mnar.datasets.user_files.csv_file import read_header
from mnar.datasets.user_files.huggingface import read_huggingface
from mnar.datasets.user_files.image_csv import PATH_NAMES, read_image_csv
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.oddities import oddities
from mnar.datasets.user_files.partly_labeled import PartlyLabeled
from mnar.datasets.user_files.table import read_table
from mnar.types import OnProgress

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", *PARQUET)
HUGGINGFACE = ("dataset_info.json", "dataset_dict.json")  # every folder that save_to_disk wrote contains one of these


def read_data(
    source: Path,
    *,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    unlabeled: tuple[str, ...] = (),
    size: int | None = None,
    features: Path | None = None,
    id: str | None = None,
    like: ModelInputs | None = None,
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Recognise what `source` is, and read it.

    label        the column that holds the labels, if it does not have a usual name such as "label"
    ignore       columns of a table to leave out
    unlabeled    further values that mean "no label", e.g. "undecided"
    size         height and width of the images, in pixels
    features     an .npy file with one row per sample, which replaces the images or columns
    id           a column that identifies the samples; it is carried along and is not a feature
    like         a trained model whose columns, classes and image size the data take; `read_data_like` sets it
    progress     called with the work done and the total work

    An option that does not apply to this kind of source is an error, because the user expects it to have an effect.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(
            f"no data at {source}; name a folder of images with a CSV, class folders, or a .csv, .parquet or .npz file"
        )
    holds_table = like is not None and like.encoder is not None
    kind, read = kind_and_reader(source, ignore, holds_table)
    no_label = tuple(text.strip() for text in unlabeled)
    options = {"label": label, "ignore": ignore, "unlabeled": no_label, "size": size, "id": id, "like": like}
    given = {name: value for name, value in options.items() if value not in (None, ())}
    accepted = signature(read).parameters
    refused = [f"--{name}" for name in given if name not in accepted]
    if refused:
        raise ValueError(f"{source} is {kind}, to which {' and '.join(refused)} cannot be applied; leave it out")
    data = read(source, **given, **({"progress": progress} if "progress" in accepted else {}))
    if features is not None:
        data = data._replace(x=_read_features(Path(features), len(data.y), source))
    return data._replace(notes=(*data.notes, *oddities(data))) if like is None else data


def kind_and_reader(
    source: Path, ignore: tuple[str, ...], holds_table: bool
) -> tuple[str, Callable[..., PartlyLabeled]]:
    """Return what the source is, in words, and the function that reads it. `holds_table`: it cannot hold images."""
    suffix = source.suffix.lower()
    if source.is_dir() and any((source / name).exists() for name in HUGGINGFACE):
        return "a Hugging Face data set", read_huggingface
    if source.is_dir() and not any(path.suffix.lower() == ".csv" for path in source.iterdir()):
        return "a folder of class folders", read_class_folders
    if source.is_dir() or (suffix == ".csv" and not holds_table and _lists_images(source, ignore)):
        return "images with a CSV file", read_image_csv
    if suffix == ".npz":
        return "an .npz file", read_arrays
    if suffix in TABLE_SUFFIXES:
        return "a table", read_table
    raise ValueError(
        f"{source} is none of {', '.join(TABLE_SUFFIXES)} or .npz; save it as one of these, or name a folder"
    )


def _lists_images(csv: Path, ignore: tuple[str, ...]) -> bool:
    """Whether the CSV file has a column of paths. In a table, the user can ignore a column of that name."""
    return any(name.lower() in PATH_NAMES and name not in ignore for name in read_header(csv))


def _read_features(path: Path, num_rows: int, source: Path) -> npt.NDArray[np.float32]:
    """Return the array of an .npy file, after checking that it has one row of finite numbers per sample."""
    features = read_npy(path, mapped=False)
    if features.ndim != 2 or features.dtype.kind not in "fiu" or len(features) != num_rows:
        raise ValueError(
            f"{path} has shape {features.shape} and type {features.dtype}, but {source} has {num_rows} samples; give a "
            f"table of numbers with {num_rows} rows, one for each sample in the order of the data"
        )
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, which is an error below
        numbers: npt.NDArray[np.float32] = features.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path} holds values that are not finite numbers; fill them in, or scale them for float32")
    return numbers
