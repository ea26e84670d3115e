"""Somebody's own data, whatever they come as, made one shape: samples, of which some have a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.inputs.arrays import from_arrays, read_arrays, tensor_of
from mnar.inputs.class_folders import read_class_folders
from mnar.inputs.csv_file import read_header
from mnar.inputs.half_labeled import UNLABELED, HalfLabeled, Table
from mnar.inputs.huggingface import read_huggingface
from mnar.inputs.image_cache import Progress
from mnar.inputs.image_table import PATH_NAMES, read_image_table
from mnar.inputs.table import read_table

__all__ = ["UNLABELED", "HalfLabeled", "Table", "from_arrays", "read_data", "tensor_of"]

KINDS_OF_TABLE = (".csv", ".tsv", ".txt", ".parquet")
HUGGINGFACE = ("dataset_info.json", "dataset_dict.json")  # one of them is in every folder that save_to_disk wrote


def read_data(
    source: Path,
    *,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    unlabeled: tuple[str, ...] = (),
    size: int | None = None,
    features: Path | None = None,
    progress: Progress | None = None,
) -> HalfLabeled:
    """Find out what a source is, and read it.

    label        the column that holds the labels, where it is not called so
    ignore       columns of a table to leave out
    unlabeled    what else stands for "no label" in a table, e.g. "undecided"
    size         of the images' sides, in pixels
    features     an .npy file with a row for each sample, to take instead of images or columns
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(
            f"no data at {source}; name a folder of images with a CSV, class folders, or a .csv, .parquet or .npz file"
        )
    if source.is_dir() and any((source / name).exists() for name in HUGGINGFACE):
        data = read_huggingface(source, label=label)
    elif source.is_dir() and not any(path.suffix.lower() == ".csv" for path in source.iterdir()):
        data = read_class_folders(source, size=size, progress=progress)
    elif source.is_dir() or _names_images(source):
        data = read_image_table(source, label_column=label, size=size, progress=progress)
    elif source.suffix == ".npz":
        data = read_arrays(source)
    elif source.suffix.lower() in KINDS_OF_TABLE:
        data = read_table(source, label=label, ignore=ignore, unlabeled=unlabeled)
    else:
        raise ValueError(
            f"{source} is none of {', '.join(KINDS_OF_TABLE)} or .npz; save it as one of these, or name a folder"
        )
    return data if features is None else data._replace(x=_features(Path(features), len(data.y)))


def _names_images(source: Path) -> bool:
    """Whether a file is a CSV with a column of paths."""
    if source.suffix.lower() != ".csv":
        return False
    return any(name.lower() in PATH_NAMES for name in read_header(source))


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
