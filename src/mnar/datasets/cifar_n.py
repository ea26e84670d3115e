"""CIFAR-10N and CIFAR-100N, labels by people (Wei et al., "Learning with Noisy Labels Revisited", ICLR 2022).

An image has a label only where people agree on one, which they do more often for some classes than for others: labels
that are really missing not at random. The truth is known beside them, for scores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.cifar import cifar10, cifar100
from mnar.datasets.labels import class_labels
from mnar.datasets.locate import Layout, locate
from mnar.datasets.npz_file import read_npz
from mnar.types import DataSet

Labels = npt.NDArray[np.int64]


def cifar10n_agreement(root: Path | None = None) -> DataSet:
    """Three people saw each image; it has a label where all three gave the same, right or wrong."""
    images = cifar10(root)
    keys = "random_label1", "random_label2", "random_label3"
    one, two, three = _read_labels(_locate("cifar10n_agreement", root, "CIFAR-10_human.npz"), keys, images)
    return _with_labels(images, one, where=(one == two) & (two == three))


def cifar100n_agreement(root: Path | None = None) -> DataSet:
    """One person saw each image; it has a label where that person agrees with the data set, so no label is wrong."""
    images = cifar100(root)
    (label,) = _read_labels(_locate("cifar100n_agreement", root, "CIFAR-100_human.npz"), ("noisy_label",), images)
    return _with_labels(images, label, where=label == images.train_y.numpy())


def _locate(dataset: str, root: Path | None, name: str) -> Path:
    built_by = f"write the arrays of the authors' {name.replace('npz', 'pt')} there, see docs/human_labels.md"
    (path,) = locate(dataset, root, Layout("cifar-n", (name,)), built_by=built_by)
    return path


def _read_labels(path: Path, keys: tuple[str, ...], images: DataSet) -> list[Labels]:
    """What each person said, in the order of the images."""
    arrays, truth = read_npz(path), images.train_y.numpy()
    for key in ("clean_label", *keys):
        if key not in arrays:
            raise ValueError(f"{path} has no {key!r}, only {sorted(arrays)}; get it again")
    if not np.array_equal(arrays["clean_label"], truth):
        raise ValueError(
            f"{path}: clean_label is not what the {len(truth)} training images of CIFAR are labelled, so it is of "
            "others or in another order; get both again"
        )
    labels = [class_labels(arrays[key], f"{path}: {key}", len(images.class_names)) for key in keys]
    for key, given in zip(keys, labels, strict=True):
        if len(given) != len(truth):
            raise ValueError(f"{path}: {key} has {len(given)} labels for {len(truth)} images; get it again")
    return labels


def _with_labels(images: DataSet, labels: Labels, *, where: npt.NDArray[np.bool_]) -> DataSet:
    return images._replace(given_y=torch.from_numpy(np.where(where, labels, -1)))
