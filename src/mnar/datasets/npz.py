"""Somebody's own data in one .npz file: x_train, y_train, x_test, y_test, and perhaps class_names."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.labels import class_labels
from mnar.datasets.statistics import mean_and_std
from mnar.types import DataSet

NEEDED = ("x_train", "y_train", "x_test", "y_test")
CHANNELS = (1, 3)  # grey or colour; drop a transparency channel


def npz(root: Path | None = None) -> DataSet:
    """Images are uint8 [n, h, w], [n, h, w, c] or [n, c, h, w]; tables are numbers [n, features]."""
    if root is None or not Path(root).is_file():
        raise FileNotFoundError(
            f"data set 'npz' is one .npz file with {', '.join(NEEDED)}; looked for {root}; name the file with --data"
        )
    path = Path(root)
    arrays = read_npz(path)
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}, only {sorted(arrays)}; name the arrays {NEEDED}")

    train_x, test_x = (_samples(arrays[name], f"{path}: {name}") for name in ("x_train", "x_test"))
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ValueError(
            f"{path}: a sample has shape {train_x.shape[1:]} in x_train and {test_x.shape[1:]} in x_test; "
            "make them the same"
        )
    class_names = _class_names(arrays, path)
    train_y = class_labels(arrays["y_train"], f"{path}: y_train", len(class_names))
    test_y = class_labels(arrays["y_test"], f"{path}: y_test", len(class_names))
    for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if len(x) != len(y):
            raise ValueError(f"{path}: x_{part} has {len(x)} rows and y_{part} has {len(y)}; give one label per row")

    mean, std = mean_and_std(torch.from_numpy(train_x))
    return DataSet(
        train_x=torch.from_numpy(train_x),
        train_y=torch.from_numpy(train_y),
        test_x=torch.from_numpy(test_x),
        test_y=torch.from_numpy(test_y),
        class_names=class_names,
        mean=mean,
        std=std,
    )


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of the file; one that would have to be unpickled is refused."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a whole .npz file of plain arrays ({error}); write it again with numpy.savez"
        ) from error


def _class_names(arrays: dict[str, npt.NDArray[Any]], path: Path) -> tuple[str, ...]:
    if "class_names" in arrays:
        return tuple(str(name) for name in arrays["class_names"])
    labels = class_labels(arrays["y_train"], f"{path}: y_train")
    return tuple(str(c) for c in range(labels.max(initial=-1) + 1))


def _samples(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if len(values) == 0:
        raise ValueError(f"{name} has no rows; give one sample or more")
    if values.ndim == 2:
        return _table(values, name)
    if values.dtype != np.uint8:
        raise ValueError(f"{name} has type {values.dtype}; give images as uint8, 0 to 255")
    if values.ndim == 3:
        return np.ascontiguousarray(values[:, None])
    if values.ndim == 4 and values.shape[1] in CHANNELS:
        return np.ascontiguousarray(values)
    if values.ndim == 4 and values.shape[3] in CHANNELS:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    raise ValueError(
        f"{name} has shape {values.shape}; give tables as [n, features], "
        f"images as [n, h, w], [n, h, w, c] or [n, c, h, w] with c in {CHANNELS}"
    )


def _table(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name} has type {values.dtype}; give a table of numbers")
    table = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(table)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(f"{name}[{row}, {column}] is {values[row, column]}; fill it in or leave the row out")
    return table
