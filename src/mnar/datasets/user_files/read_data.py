"""Somebody's own data, whatever they come as, made one shape: samples, of which some have a label."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.arrays import read_arrays
from mnar.datasets.user_files.class_folders import read_class_folders
from mnar.datasets.user_files.columns import PARQUET
from mnar.datasets.user_files.csv_file import read_header
from mnar.datasets.user_files.huggingface import read_huggingface
from mnar.datasets.user_files.image_csv import PATH_NAMES, read_image_csv
from mnar.datasets.user_files.partly_labeled import PartlyLabeled
from mnar.datasets.user_files.table import read_table
from mnar.types import OnProgress

KINDS_OF_TABLE = (".csv", ".tsv", ".txt", *PARQUET)
HUGGINGFACE = ("dataset_info.json", "dataset_dict.json")  # one of them is in every folder that save_to_disk wrote


def read_data(
    source: Path,
    *,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    unlabeled: tuple[str, ...] = (),
    size: int | None = None,
    features: Path | None = None,
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Find out what a source is, and read it.

    label        the column that holds the labels, where it is not called so
    ignore       columns of a table to leave out
    unlabeled    what else stands for "no label", e.g. "undecided"
    size         of the images' sides, in pixels
    features     an .npy file with a row for each sample, to take instead of images or columns

    Options that this source has no use for are refused: somebody meant something by them.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(
            f"no data at {source}; name a folder of images with a CSV, class folders, or a .csv, .parquet or .npz file"
        )
    kind, read = _kind_and_reader(source, ignore)
    markers = tuple(marker.strip() for marker in unlabeled)
    options = {"label": label, "ignore": ignore, "unlabeled": markers, "size": size}
    said = {name: value for name, value in options.items() if value not in (None, ())}
    taken = signature(read).parameters
    idle = [f"--{name}" for name in said if name not in taken]
    if idle:
        raise ValueError(f"{source} is {kind}, to which {' and '.join(idle)} cannot be applied; leave it out")
    data = read(source, **said, **({"progress": progress} if "progress" in taken else {}))
    return data if features is None else data._replace(x=_features(Path(features), len(data.y)))


def _kind_and_reader(source: Path, ignore: tuple[str, ...]) -> tuple[str, Callable[..., PartlyLabeled]]:
    suffix = source.suffix.lower()
    if source.is_dir() and any((source / name).exists() for name in HUGGINGFACE):
        return "a Hugging Face data set", read_huggingface
    if source.is_dir() and not any(path.suffix.lower() == ".csv" for path in source.iterdir()):
        return "a folder of class folders", read_class_folders
    if source.is_dir() or (suffix == ".csv" and _names_images(source, ignore)):
        return "images with a CSV file", read_image_csv
    if suffix == ".npz":
        return "an .npz file", read_arrays
    if suffix in KINDS_OF_TABLE:
        return "a table", read_table
    raise ValueError(
        f"{source} is none of {', '.join(KINDS_OF_TABLE)} or .npz; save it as one of these, or name a folder"
    )


def _names_images(csv: Path, ignore: tuple[str, ...]) -> bool:
    """Whether it has a column of paths; a table with a column of that name leaves it out."""
    return any(name.lower() in PATH_NAMES and name not in ignore for name in read_header(csv))


def _features(path: Path, num_rows: int) -> npt.NDArray[np.float32]:
    try:
        features: Any = np.load(path, allow_pickle=False)
        if not isinstance(features, np.ndarray):
            raise ValueError("an archive of several")
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a whole .npy file of numbers ({error}); write it with numpy.save") from error
    if features.ndim != 2 or features.dtype.kind not in "fiu" or len(features) != num_rows:
        raise ValueError(
            f"{path} has shape {features.shape} and type {features.dtype}; give a table of numbers with {num_rows} "
            "rows, one for each sample in the order of the data"
        )
    with np.errstate(over="ignore"):  # infinite then, and refused
        numbers: npt.NDArray[np.float32] = features.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path} holds values that are not finite numbers; fill them in, or scale them for float32")
    return numbers
