"""The few shapes that every part agrees on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# predict(passes=10, dropout=True) goes through the unlabelled set, in order: rows [n], logits [passes, n, k] at a time;
# with labeled=False without those of its rows that are labelled as well.
Predict = Callable[..., Iterator[tuple[Tensor, Tensor]]]
OnProgress = Callable[[int, int], None]  # called with the number of items that are done, and their total


class Task(NamedTuple):
    """All that a method may know before training: no label of an unlabelled sample is here, so none can leak."""

    num_classes: int
    num_unlabeled: int  # rows of the unlabelled set; an index lies in [0, num_unlabeled)
    labeled_targets: Tensor | None = None  # [n_L] int64
    batch_labeled: int = 64  # global sizes, over all processes
    batch_unlabeled: int = 448  # the largest unlabelled batch a method will see

    @property
    def labeled_counts(self) -> Tensor:
        """How many labels each class has, [k]."""
        labels = self.labeled_targets
        if labels is None or len(labels) == 0:
            raise ValueError(
                "the task has no labels (Task.labeled_targets), whose class counts are needed here; give it some, or "
                "choose a method or a target that does without"
            )
        one = torch.ones(len(labels), device=labels.device)
        return torch.zeros(self.num_classes, device=labels.device).index_add_(0, labels, one)


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


class LabelBudget(NamedTuple):
    """How many of the existing labels a protocol keeps, drawn at random whatever their class."""

    num_labels: int


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
    train_y: Tensor  # int64 in [0, number of classes); -1 where nobody knows, -2 where not to be used
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of values in 0..1 (images); per feature (tables)
    std: tuple[float, ...]
    encoding: dict[str, Any] | None = None  # of a table: how its columns became features, for new rows to follow
    fingerprint: str | None = None  # tells other data apart, where reading all of it would take long
    test_is_trained_on: bool = False  # of own data with too few labels to hold some out: scores then flatter
    notes: tuple[str, ...] = ()  # what was skipped or guessed while reading, or looks odd
    row_names: Sequence[str] = ()  # of own data: what to call a training sample, its path or its line
    given_y: Tensor | None = None  # labels as people gave them, -1 where they gave none; None: train_y

    @property
    def labels(self) -> Tensor:
        """What there is to train on: right or wrong, while train_y is the truth, which pseudo-labels are scored by."""
        return self.train_y if self.given_y is None else self.given_y

    @property
    def is_image(self) -> bool:
        return self.train_x.ndim == 4
