"""Load CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the published Python files or from .npz parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.cifar_pickle import read_pickle
from mnar.datasets.labels import class_labels
from mnar.datasets.locate import Layout, locate
from mnar.datasets.npz_file import read_npz
from mnar.types import DataSet

Pair = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]  # images and labels

CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


def cifar10(root: Path | None = None) -> DataSet:
    """Return CIFAR-10. `root` is the data folder, or the folder that contains the files themselves."""
    batches = tuple(f"data_batch_{number}" for number in range(1, 6))
    files = locate(
        "cifar10",
        root,
        Layout("cifar-10-batches-py", (*batches, "test_batch")),
        Layout("cifar-10-batches-py", ("cifar10-part*.npz",)),
        how_to_get="unpack the authors' cifar-10-python.tar.gz there",
    )
    return _data_set(
        files,
        labels_key="labels",
        class_names=tuple(CIFAR10_CLASSES.split()),
        mean=(125.3, 123.0, 113.9),
        std=(63.0, 62.1, 66.7),
    )


def cifar100(root: Path | None = None) -> DataSet:
    """Return CIFAR-100 with its 100 fine labels. `root` is as in `cifar10`."""
    files = locate(
        "cifar100",
        root,
        Layout("cifar-100-python", ("train", "test")),
        Layout("cifar-100-python", ("cifar100-part*.npz",)),
        how_to_get="unpack the authors' cifar-100-python.tar.gz there",
    )
    return _data_set(
        files,
        labels_key="fine_labels",
        class_names=tuple(CIFAR100_CLASSES.split()),
        mean=(129.3, 124.1, 112.4),
        std=(68.2, 65.4, 70.4),
    )


def _data_set(
    files: list[Path],
    labels_key: str,
    class_names: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> DataSet:
    """Read the files and check them. `mean` and `std` are in grey levels, 0..255."""
    num_classes = len(class_names)
    if files[0].suffix == ".npz":
        train, test = _from_parts(files, num_classes)
    else:
        pairs = [_pair(read_pickle(path), "data", labels_key, path, num_classes) for path in files]
        train, test = pairs[:-1], pairs[-1:]
    train_x, train_y = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*train, strict=True))
    test_x, test_y = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*test, strict=True))
    return DataSet(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        class_names=class_names,
        mean=tuple(level / 255 for level in mean),
        std=tuple(level / 255 for level in std),
    )


def _from_parts(files: list[Path], num_classes: int) -> tuple[list[Pair], list[Pair]]:
    """Return the training pairs and the test pairs of the .npz parts, in the order of the files."""
    train, test = [], []
    for path in files:
        arrays = read_npz(path)
        if "x" in arrays or "y" in arrays:
            train.append(_pair(arrays, "x", "y", path, num_classes))
        if "test_x" in arrays or "test_y" in arrays:
            test.append(_pair(arrays, "test_x", "test_y", path, num_classes))
    if not (train and test):
        raise ValueError(
            f"{files[0]} to {files[-1].name} contain {len(train)} training and {len(test)} test parts, but both kinds "
            "are needed; add parts with the arrays x, y and with test_x, test_y"
        )
    return train, test


def _pair(entries: Mapping[str, Any], x_key: str, y_key: str, source: Path, num_classes: int) -> Pair:
    """Return the images as [n, 3, 32, 32] and their labels, after checking both."""
    for key in (x_key, y_key):
        if key not in entries:
            raise ValueError(f"{source} has no {key!r}, only {sorted(entries)}; get a new copy of the file")
    images = np.asarray(entries[x_key])
    labels = class_labels(entries[y_key], f"{source}: {y_key}", num_classes)
    if images.dtype != np.uint8 or images.shape[1:] not in ((3 * 32 * 32,), (3, 32, 32)):
        raise ValueError(
            f"{source}: {x_key} has type {images.dtype} and shape {images.shape}, but CIFAR images are uint8 of "
            "3x32x32; get a new copy of the file"
        )
    if len(images) != len(labels):
        raise ValueError(
            f"{source} has {len(images)} images and {len(labels)} labels, but needs one label per image; "
            "get a new copy of the file"
        )
    return images.reshape(-1, 3, 32, 32), labels
