"""Load fully labelled data from one .npz file with x_train, y_train, x_test, y_test and, optionally, class_names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from mnar.datasets.labels import class_labels
from mnar.datasets.npz_file import read_npz, samples
from mnar.datasets.statistics import mean_and_std
from mnar.types import DataSet

MOST_NUMBERED_CLASSES = (
    1000  # or the number of samples; a larger label is a mistake and would fill the memory with names
)
NEEDED = ("x_train", "y_train", "x_test", "y_test")


def npz(root: Path | None = None) -> DataSet:
    """Return the data of the .npz file `root`.

    Images are uint8 [n, h, w], [n, h, w, c] or [n, c, h, w]; tables are numbers [n, features].
    """
    if root is None or not Path(root).is_file():
        raise FileNotFoundError(
            f"data set 'npz' is one .npz file with {', '.join(NEEDED)}, but {root} is not a file; name the file with "
            "--data"
        )
    path = Path(root)
    arrays = read_npz(path)
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}, only {sorted(arrays)}; call the arrays {NEEDED}")

    train_x, test_x = (samples(arrays[name], f"{path}: {name}") for name in ("x_train", "x_test"))
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ValueError(
            f"{path}: a sample has shape {train_x.shape[1:]} in x_train and {test_x.shape[1:]} in x_test; "
            "give both arrays the same shape per sample"
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


def _class_names(arrays: dict[str, npt.NDArray[Any]], path: Path) -> tuple[str, ...]:
    """Return the class names that the file contains, or else the numbers up to the largest training label."""
    if "class_names" in arrays:
        return tuple(str(name) for name in arrays["class_names"])
    labels = class_labels(arrays["y_train"], f"{path}: y_train")
    largest, most = labels.max(initial=-1), max(MOST_NUMBERED_CLASSES, len(labels))
    if largest >= most:
        raise ValueError(
            f"{path}: y_train has the label {largest}, but {len(labels)} samples; number the classes 0, 1, 2, ... "
            f"up to {most - 1} at most, or store class_names"
        )
    return tuple(str(c) for c in range(labels.max(initial=-1) + 1))
