"""The data types that all parts share: tasks, batches, splits, data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# predict(passes=10, dropout=True) iterates over the unlabelled set in order and yields rows [n] and logits
# [passes, n, k]. With labeled=False it leaves out the rows that are also labelled.
Predict = Callable[..., Iterator[tuple[Tensor, Tensor]]]
OnProgress = Callable[[int, int], None]  # called with the number of finished items and their total


class Task(NamedTuple):
    """All that a method may know before training.

    A task has no labels of unlabelled samples, so these cannot leak into a method.
    """

    num_classes: int
    num_unlabeled: int  # rows of the unlabelled set; an index lies in [0, num_unlabeled)
    labeled_targets: Tensor | None = None  # [n_L] int64
    batch_labeled: int = 64  # global sizes, over all processes
    batch_unlabeled: int = 448  # the largest unlabelled batch that a method gets

    @property
    def labeled_counts(self) -> Tensor:
        """The number of labels of each class, [k]."""
        labels = self.labeled_targets
        if labels is None or len(labels) == 0:
            raise ValueError(
                "the task has no labels (Task.labeled_targets), whose class counts are needed here; give it some, or "
                "choose a method or a target that does without"
            )
        one = torch.ones(len(labels), device=labels.device)
        return torch.zeros(self.num_classes, device=labels.device).index_add_(0, labels, one)

    def labeled_shares(self, *, needed_by: str) -> Tensor:
        """The class shares of the labels, [k], for a method that needs a label of every class."""
        counts = self.labeled_counts
        try:
            torch._assert_async((counts > 0).all().cpu())  # works on fake tensors, too, which have no values
        except RuntimeError as error:
            raise MissingLabels((counts == 0).nonzero().flatten().tolist(), needed_by) from error
        return counts / counts.sum()


class MissingLabels(ValueError):
    """A method needs a label of every class, and some classes have none."""

    def __init__(self, classes: Sequence[int | str], needed_by: str) -> None:
        super().__init__(
            f"no labelled sample of class {', '.join(map(str, classes))}; {needed_by} uses the class shares of the "
            "labels, so label at least one sample of each class, or choose another method"
        )
        self.classes, self.needed_by = classes, needed_by


class Batch(NamedTuple):
    """The input of one training step: tensors of fixed shapes on the device."""

    x: Tensor  # views of the labelled samples
    y: Tensor  # targets of `x`
    x_index: Tensor  # rows of `x` in the labelled set (may repeat)
    u: dict[str, Tensor]  # views of the unlabelled samples, one entry per name in Learner.views
    u_index: Tensor  # rows of these samples in the unlabelled set


class Rows(NamedTuple):
    """Samples in two parts that a network processes together. Gradients flow through the trained rows only."""

    trained: Tensor
    observed: Tensor


# The input of a network and of its layers: samples that all have a gradient, or `Rows`.
Samples = Tensor | Rows


class Step(NamedTuple):
    """The output of a learner for one batch: the loss and values for the log."""

    loss: Tensor
    logs: dict[str, Tensor]  # 0-d device tensors; the training loop decides when to read them


class Counts(NamedTuple):
    """The number of samples of each class that a protocol asks for."""

    labeled: tuple[int, ...]
    unlabeled: tuple[int, ...] | None = None  # drawn in addition to the labelled samples; None: all remaining samples


class ExactCounts(Counts):
    """Counts whose unlabelled part is never reduced: a class with too few samples is an error."""

    __slots__ = ()


class LabelBudget(NamedTuple):
    """The number of existing labels that a protocol keeps, drawn at random and regardless of class."""

    num_labels: int


class Split(NamedTuple):
    """The labelled and the unlabelled rows of the training set."""

    labeled_index: npt.NDArray[np.int64]
    unlabeled_index: npt.NDArray[np.int64]


class Selection(NamedTuple):
    """The unlabelled rows that join the labelled set in the next generation, with their pseudo-labels."""

    rows: Tensor  # [m] rows of the unlabelled set
    labels: Tensor  # [m] pseudo-labels of these rows
    pool: Tensor | None = None  # [r] the rows from which unlabelled batches are drawn; None: all
    negative: Tensor | None = None  # [rows of the unlabelled set, k] True: the row is labelled as not of this class

    def on_host(self) -> Selection:
        """Return the same selection in the memory of the host."""
        return Selection(*(None if tensor is None else tensor.cpu() for tensor in self))  # type: ignore[arg-type]


class DataSet(NamedTuple):
    """A training and a test set: images as uint8 [n, channels, height, width], tables as float32 [n, features]."""

    train_x: Tensor
    train_y: Tensor  # true classes, int64 in [0, number of classes); -1: unknown, -2: kept out of training
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, for values in 0..1 (images); per feature (tables)
    std: tuple[float, ...]
    encoding: dict[str, Any] | None = None  # tables: how columns become features; new rows need the same encoding
    fingerprint: str | None = None  # identifies the data; None: the run hashes all of it
    test_is_trained_on: bool = False  # own data with too few labels to hold some out: scores are too high
    notes: tuple[str, ...] = ()  # what the reader skipped or guessed, or what looks odd
    row_names: Sequence[str] = ()  # own data: the path or the line number of each training sample
    given_y: Tensor | None = None  # labels as annotators gave them, -1 without a label; None: same as train_y
    row_numbers: Sequence[int] | npt.NDArray[np.int64] = ()  # own data: rows of the file from 1, without header
    ids: Sequence[str] | None = None  # own data: the cells of the id column, if the user named one
    id_name: str | None = None  # own data: the name of that column

    @property
    def labels(self) -> Tensor:
        """The labels to train on, right or wrong. `train_y` has the true classes, which score the pseudo-labels."""
        return self.train_y if self.given_y is None else self.given_y

    @property
    def is_image(self) -> bool:
        return self.train_x.ndim == 4
