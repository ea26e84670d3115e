"""Load MNIST (LeCun et al., 1998) from its idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.labels import class_labels
from mnar.datasets.locate import Layout, locate
from mnar.datasets.statistics import mean_and_std
from mnar.types import DataSet

NUM_CLASSES = 10
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def mnist(root: Path | None = None) -> DataSet:
    """Return MNIST as grey images. `root` is the data folder, or the folder that contains the files themselves."""
    gzipped = tuple(f"{name}.gz" for name in FILES)
    layouts = Layout("MNIST/raw", FILES), Layout("MNIST/raw", gzipped)
    files = locate("mnist", root, *layouts, how_to_get="put the authors' four files there, as they are")
    train_x, train_y = _images_and_labels(files[0], files[1])
    test_x, test_y = _images_and_labels(files[2], files[3])
    mean, std = mean_and_std(train_x)
    return DataSet(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        class_names=tuple(str(digit) for digit in range(NUM_CLASSES)),
        mean=mean,
        std=std,
    )


def _images_and_labels(images_path: Path, labels_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images as [n, 1, height, width] and their labels."""
    images = read_idx(images_path, ndim=3)
    labels = class_labels(read_idx(labels_path, ndim=1), f"{labels_path}: labels", NUM_CLASSES)
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path} has {len(images)} images and {labels_path} {len(labels)} labels, but each image needs one "
            "label; get new copies of both files"
        )
    return torch.from_numpy(images[:, None]), torch.from_numpy(labels)


def read_idx(path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Return the array of an idx file of bytes that has `ndim` axes.

    The file contains the bytes 0, 0, 8 (the type), the number of axes, the big-endian length of each axis, the values.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); get a new copy of the file") from error
    start = 4 + 4 * ndim
    if content[:4] != bytes((0, 0, 8, ndim)) or len(content) < start:
        raise ValueError(f"{path} is not an idx file of bytes with {ndim} axes; get a new copy of the file")
    shape = np.frombuffer(content[4:start], ">i4").tolist()
    if len(content) != start + math.prod(shape):
        raise ValueError(
            f"{path} has {len(content) - start} values, but its header announces {shape}; get a new copy of the file"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # the copy is writable
