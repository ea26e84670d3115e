"""Load CIFAR-10N and CIFAR-100N: CIFAR images that human annotators labelled again.

Wei et al., "Learning with Noisy Labels Revisited", ICLR 2022. Here an image has a label only if its annotators agree.
Annotators agree more often on some classes than on others, so these labels are really missing not at random. The true
labels are known too; they serve to compute scores.
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
    """Return CIFAR-10, where an image is labelled if its three annotators gave the same label, right or wrong."""
    images = cifar10(root)
    keys = "random_label1", "random_label2", "random_label3"
    one, two, three = _read_labels(_locate("cifar10n_agreement", root, "CIFAR-10_human.npz"), keys, images)
    return _with_labels(images, one, where=(one == two) & (two == three))


def cifar100n_agreement(root: Path | None = None) -> DataSet:
    """Return CIFAR-100, where an image is labelled if its one annotator gave the true label, so no label is wrong."""
    images = cifar100(root)
    (label,) = _read_labels(_locate("cifar100n_agreement", root, "CIFAR-100_human.npz"), ("noisy_label",), images)
    return _with_labels(images, label, where=label == images.train_y.numpy())


def _locate(dataset: str, root: Path | None, name: str) -> Path:
    how_to_get = f"write the arrays of the authors' {name.replace('npz', 'pt')} there, see docs/human_labels.md"
    (path,) = locate(dataset, root, Layout("cifar-n", (name,)), how_to_get=how_to_get)
    return path


def _read_labels(path: Path, keys: tuple[str, ...], images: DataSet) -> list[Labels]:
    """Return the labels of each annotator, in the order of the images."""
    arrays, truth = read_npz(path), images.train_y.numpy()
    for key in ("clean_label", *keys):
        if key not in arrays:
            raise ValueError(f"{path} has no {key!r}, only {sorted(arrays)}; get a new copy of the file")
    if not np.array_equal(arrays["clean_label"], truth):
        raise ValueError(
            f"{path}: clean_label differs from the labels of the {len(truth)} training images of CIFAR, so the file "
            "belongs to other images or to another order of the images; get new copies of both"
        )
    labels = [class_labels(arrays[key], f"{path}: {key}", len(images.class_names)) for key in keys]
    for key, given in zip(keys, labels, strict=True):
        if len(given) != len(truth):
            raise ValueError(
                f"{path}: {key} has {len(given)} labels for {len(truth)} images; get a new copy of the file"
            )
    return labels


def _with_labels(images: DataSet, labels: Labels, *, where: npt.NDArray[np.bool_]) -> DataSet:
    """Return the data set in which the images at `where` have their label from `labels`, and the others have none."""
    return images._replace(given_y=torch.from_numpy(np.where(where, labels, -1)))
