"""Read samples and their labels, some of them missing, from the arrays of an .npz file."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.labels import class_labels
from mnar.datasets.npz_file import read_npz, samples
from mnar.datasets.user_files.label_values import encode_labels, is_missing_value
from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table

SAMPLES, LABELS, CLASSES = ("x", "X"), ("y",), ("class_names", "classes")


def read_arrays(path: Path, *, unlabeled: Collection[str] = ()) -> PartlyLabeled:
    """Read an .npz file with the arrays x (or X), y and, optionally, class_names (or classes).

    Images are uint8 [n, h, w], [n, h, w, c] or [n, c, h, w]. Features are numbers [n, d], and NaN if one is missing.
    Labels are numbers or texts. If the file names the classes, the numbers count them from 0; otherwise, the numbers
    are the names of the classes. `unlabeled` are further values that mean "no label", besides -1, NaN and the texts
    that mean it in every file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; name an .npz file with the arrays x and y")
    arrays = read_npz(path)
    x_name, y_name, classes_name = (_one_of(names, arrays, path) for names in (SAMPLES, LABELS, CLASSES))
    if x_name is None or y_name is None:
        raise ValueError(
            f"{path} has no {'x' if x_name is None else 'y'}, only {', '.join(sorted(arrays)) or 'nothing'}; call the "
            "samples x and their labels y (-1: no label)"
        )
    class_names = None if classes_name is None else np.atleast_1d(arrays[classes_name]).tolist()
    x = _samples_or_table(arrays[x_name], f"{path}: {x_name}")
    y, names, notes = labels_of(arrays[y_name], f"{path}: {y_name}", class_names, unlabeled)
    if len(x) != len(y):
        raise ValueError(f"{path}: {x_name} has {len(x)} rows and {y_name} has {len(y)}; give one label per row")
    return PartlyLabeled(x, y, names, [f"row {row}" for row in range(len(y))], tuple(notes))


def labels_of(
    y: npt.NDArray[Any], where: str, class_names: Sequence[str] | None = None, unlabeled: Collection[str] = ()
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], list[str]]:
    """Return class numbers, class names in order, and notes, as `encode_labels` does, for labels of any type.

    Numbers count the classes from 0 if `class_names` is given. Error messages begin with `where`.
    """
    if y.ndim != 1:
        raise ValueError(f"{where} has shape {y.shape}; give one label per row")
    if y.dtype == object and all(value is None or _is_number(value) for value in y):
        y = y.astype(np.float64)  # None becomes NaN
    texts = [_text(value) for value in y.tolist()]
    names = None if class_names is None else [str(name) for name in class_names]
    if names is not None and y.dtype.kind in "iuf":
        is_label = np.array([text is not None and text not in unlabeled for text in texts], bool)
        numbers = class_labels(np.where(is_label, y, 0), where, len(names))
        texts = [names[number] if known else None for number, known in zip(numbers, is_label, strict=True)]
    return encode_labels(texts, where, names, unlabeled=unlabeled)


def tensor_of(x: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory, which may be a read-only mapped file larger than the memory.

    torch warns about a read-only array. Mapping the file copy-on-write would avoid the warning, but would ask the
    system for as much memory as the file is long.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(x)


def _samples_or_table(x: npt.NDArray[Any], name: str) -> npt.NDArray[Any] | Table:
    """Return checked samples, as a table if some features are missing (NaN)."""
    if x.ndim != 2 or x.dtype.kind != "f" or not np.isnan(x).any():
        return samples(x, name)
    samples(np.where(np.isnan(x), 0, x), name)  # checks the features that are not missing
    return Table.of_numbers(x.astype(np.float64))


def _one_of(names: Sequence[str], arrays: dict[str, npt.NDArray[Any]], path: Path) -> str | None:
    """Return the one of these names that the file has, or None; two of them are an error."""
    found = [name for name in names if name in arrays]
    if len(found) > 1:
        raise ValueError(f"{path} has both {' and '.join(found)}; remove one of them")
    return found[0] if found else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _text(value: Any) -> str | None:
    """Return a label as text, or None if the value means "no label"; `encode_labels` decides that for texts."""
    if not isinstance(value, str) and is_missing_value(value):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
