"""The few shapes that every part agrees on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor


class Task(NamedTuple):
    """All that a method may know before training: no label of an unlabelled sample is here, so none can leak."""

    num_classes: int
    num_unlabeled: int  # rows of the unlabelled set; an index lies in [0, num_unlabeled)
    labeled_targets: Tensor | None = None  # [n_L] int64
    batch_labeled: int = 64  # global sizes, over all processes
    batch_unlabeled: int = 448  # the largest unlabelled batch a method will see


class Batch(NamedTuple):
    """One step's input: fixed shapes, on the device."""

    x: Tensor  # labelled view
    y: Tensor  # its target
    x_index: Tensor  # its row in the labelled set (may repeat)
    u: dict[str, Tensor]  # unlabelled views, one entry per name in Learner.views
    u_index: Tensor  # their row in the unlabelled set


class Step(NamedTuple):
    """What a learner makes of a batch."""

    loss: Tensor
    logs: dict[str, Tensor]  # 0-d device tensors; the loop decides when to read them


class Counts(NamedTuple):
    """How many samples of each class a protocol asks for."""

    labeled: tuple[int, ...]
    unlabeled: tuple[int, ...] | None = None  # drawn besides the labelled ones; None: all that is left


class Split(NamedTuple):
    """Which rows of the training set are labelled, and which are unlabelled."""

    labeled_index: npt.NDArray[np.int64]
    unlabeled_index: npt.NDArray[np.int64]


class Selection(NamedTuple):
    """What one generation hands to the next: unlabelled rows that join the labelled set, and as what."""

    rows: Tensor  # [m] of the unlabelled set
    labels: Tensor  # [m] the classes they are trained as
    pool: Tensor | None = None  # [r] the rows that unlabelled batches are drawn from; None: all
    negative: Tensor | None = None  # [rows of the unlabelled set, k] classes that they are said not to be


class DataSet(NamedTuple):
    """A training and a test set: images as uint8 [n, channels, height, width], tables as float32 [n, features]."""

    train_x: Tensor
    train_y: Tensor  # int64 in [0, number of classes)
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of values in 0..1 (images); per feature (tables)
    std: tuple[float, ...]

    @property
    def is_image(self) -> bool:
        return self.train_x.ndim == 4
