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
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.image_decode import resized
from mnar.datasets.user_files.label_values import encode_labels, is_missing_value
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.number_columns import LARGE_NUMBER, notes_on_numbers, without_infinity
from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, RowNames, Table

SAMPLES, LABELS, CLASSES = ("x", "X"), ("y",), ("class_names", "classes")


def read_arrays(
    path: Path, *, unlabeled: Collection[str] = (), id: str | None = None, like: ModelInputs | None = None
) -> PartlyLabeled:
    """Read an .npz file with the arrays x (or X), y and, optionally, class_names (or classes).

    Images are uint8 [n, h, w], [n, h, w, c] or [n, c, h, w]. Features are numbers [n, d], and NaN if one is missing.
    Labels are numbers or texts. If the file names the classes, the numbers count them from 0; otherwise, the numbers
    are the names of the classes. `unlabeled` are further values that mean "no label", besides -1, NaN and the texts
    that mean it in every file. `id` is an array that identifies the rows. `like` is a trained model whose classes and
    image size the data take; then y may be missing.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; name an .npz file with the arrays x and y")
    arrays = read_npz(path)
    x_name, y_name, classes_name = (one_of(names, arrays, path) for names in (SAMPLES, LABELS, CLASSES))
    if x_name is None or (y_name is None and like is None):
        raise ValueError(
            f"{path} has no {'x' if x_name is None else 'y'}, only {', '.join(sorted(arrays)) or 'nothing'}; call the "
            "samples x and their labels y (-1: no label)"
        )
    if id is not None and id not in arrays:
        raise ValueError(f"{path} has no array {id!r} of ids, only {', '.join(sorted(arrays))}; name one of these")
    x, notes = samples_or_table(arrays[x_name], f"{path}: {x_name}")
    for name in (y_name, id):
        if name is not None and len(np.atleast_1d(arrays[name])) != len(x):
            raise ValueError(
                f"{path}: {x_name} has {len(x)} rows and {name} has {len(np.atleast_1d(arrays[name]))}; give one "
                f"{'label' if name == y_name else 'id'} per row"
            )
    class_names = None if classes_name is None else np.atleast_1d(arrays[classes_name]).tolist()
    row_names = RowNames("row", range(1, len(x) + 1))
    if like is None:
        assert y_name is not None  # checked above
        y, names, label_notes = labels_of(arrays[y_name], f"{path}: {y_name}", class_names, unlabeled)
        notes += label_notes
    else:
        y, names = np.full(len(x), UNLABELED, np.int64), like.class_names
        if y_name is not None:
            texts = label_texts(arrays[y_name], f"{path}: {y_name}", class_names or like.counted_names, unlabeled)
            y = like.labels(texts, f"{path}: {y_name}", row_names, unlabeled)
        if like.image_shape is not None and not isinstance(x, Table) and x.ndim == 4:
            x = resized(x, like.image_shape)
    ids, id_notes = identifiers(None if id is None else [str(value) for value in arrays[id].tolist()], str(path))
    return PartlyLabeled(x, y, names, row_names, (*notes, *id_notes), row_names.numbers, ids, id)


def labels_of(
    y: npt.NDArray[Any], where: str, class_names: Sequence[str] | None = None, unlabeled: Collection[str] = ()
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], list[str]]:
    """Return class numbers, class names in order, and notes, as `encode_labels` does, for labels of any type.

    Numbers count the classes from 0 if `class_names` is given. Error messages begin with `where`.
    """
    names = None if class_names is None else [str(name) for name in class_names]
    return encode_labels(label_texts(y, where, names, unlabeled), where, names, unlabeled=unlabeled)


def label_texts(
    y: npt.NDArray[Any], where: str, class_names: Sequence[str] | None, unlabeled: Collection[str]
) -> list[str | None]:
    """Return labels of any type as texts, None if there is no label; the arguments are those of `labels_of`."""
    if y.ndim != 1:
        raise ValueError(f"{where} has shape {y.shape}; give one label per row")
    if y.dtype == object and all(value is None or _is_number(value) for value in y):
        y = y.astype(np.float64)  # None becomes NaN
    texts = [_text(value) for value in y.tolist()]
    if class_names is not None and y.dtype.kind in "iuf":
        is_label = np.array([text is not None and text not in unlabeled for text in texts], bool)
        numbers = class_labels(np.where(is_label, y, 0), where, len(class_names))
        texts = [str(class_names[number]) if known else None for number, known in zip(numbers, is_label, strict=True)]
    return texts


def tensor_of(x: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory, which may be a read-only mapped file larger than the memory.

    torch warns about a read-only array. Mapping the file copy-on-write would avoid the warning, but would ask the
    system for as much memory as the file is long.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(x)


def samples_or_table(x: npt.NDArray[Any], name: str) -> tuple[npt.NDArray[Any] | Table, list[str]]:
    """Return checked samples, as a table if some features are missing, infinite or too large, and notes on these."""
    if x.ndim != 2 or x.dtype.kind not in "iuf" or not x.size:
        return samples(x, name), []
    is_finite = np.isfinite(x)
    largest = np.max(np.abs(x, dtype=np.float64), initial=0, where=is_finite)
    if is_finite.all() and largest <= LARGE_NUMBER:
        return samples(x, name), []
    numbers = x.astype(np.float64)
    notes = [
        f"{name}[:, {column}] {note}" for column in range(x.shape[1]) for note in notes_on_numbers(numbers[:, column])
    ]
    return Table.of_numbers(without_infinity(numbers)), notes


def one_of(names: Sequence[str], arrays: dict[str, npt.NDArray[Any]], path: Path) -> str | None:
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
