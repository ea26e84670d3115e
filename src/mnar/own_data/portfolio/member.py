"""What every member of the portfolio offers: it is fitted to half-labelled samples, and then predicts any samples.

The probabilities of a member are *balanced*: they are the probabilities that would hold if all classes were equally
frequent. Balanced probabilities do not depend on the class distribution of the labels, so members can be combined, and
the class distribution of the pool can be put in afterwards (`with_shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files import UNLABELED

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Features = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]


class Inputs(NamedTuple):
    """Samples in the form that members take. For images there are both their features and the images themselves."""

    features: Features  # [n, d], standardised
    images: npt.NDArray[np.uint8] | None = None  # [n, channels, height, width]
    # [n] positions among the samples that the member was fitted to; None: new samples. A member that has already
    # predicted its own samples need not predict them again.
    training_rows: Integers | None = None
    # Results that depend on the inputs alone, e.g. nearest neighbours. Members that predict the same inputs share them.
    shared: dict[str, Any] | None = None

    def rows(self, index: npt.NDArray[Any]) -> Inputs:
        """Return the samples that `index` selects."""
        images = None if self.images is None else self.images[index]
        training_rows = None if self.training_rows is None else self.training_rows[index]
        return Inputs(self.features[index], images, training_rows)


@dataclass(frozen=True)
class Samples:
    """Half-labelled samples, from which a member learns."""

    inputs: Inputs
    y: Integers  # [n] classes; UNLABELED for the samples of the pool
    num_classes: int  # includes classes without a label
    seed: int = 0
    # Results that depend on the inputs alone, e.g. nearest neighbours. All folds of a cross-validation share them.
    shared: dict[str, Any] = field(default_factory=dict)

    @property
    def is_labeled(self) -> npt.NDArray[np.bool_]:
        return np.not_equal(self.y, UNLABELED)

    @property
    def labeled_features(self) -> Features:
        return self.inputs.features[self.is_labeled]

    @property
    def labels(self) -> Integers:
        return self.y[self.is_labeled]

    @property
    def pool_features(self) -> Features:
        return self.inputs.features[~self.is_labeled]

    @property
    def counts(self) -> Integers:
        """The number of labels of each class, [k]."""
        return np.bincount(self.labels, minlength=self.num_classes)

    def without_labels(self, rows: npt.NDArray[Any]) -> Samples:
        """Return the same samples, in which these rows belong to the pool."""
        y = self.y.copy()
        y[rows] = UNLABELED
        return replace(self, y=y)


class Fitted(Protocol):
    """A fitted member."""

    kind: ClassVar[str]  # names the class in a model file

    def probs(self, inputs: Inputs) -> Floats:
        """Return balanced class probabilities, [n, k]."""

    def arrays(self) -> Arrays:
        """Return all that `from_arrays` needs, so that the member can be stored without pickle."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self: ...


@dataclass(frozen=True)
class Member:
    """A method that the portfolio can try."""

    name: str
    description: str
    fit: Callable[[Samples], Fitted]
    uses_pool: bool = False


def softmax(scores: Floats) -> Floats:
    """Return the softmax of each row."""
    exponentials = np.exp(scores - scores.max(1, keepdims=True))
    probs: Floats = exponentials / exponentials.sum(1, keepdims=True)
    return probs


def normalized(weights: Floats) -> Floats:
    """Return rows that sum to 1; a row of zeros becomes uniform."""
    sums = weights.sum(1, keepdims=True)
    uniform = np.full_like(weights, 1 / weights.shape[1])
    probs: Floats = np.divide(weights, sums, out=uniform, where=sums > 0)
    return probs


def balanced(probs: Floats, counts: Integers) -> Floats:
    """Return probabilities of a model that was trained with `counts` rows per class, as if all counts were equal."""
    return normalized(np.divide(probs, counts, out=np.zeros_like(probs), where=counts > 0))


def with_shares(probs: Floats, shares: Floats) -> Floats:
    """Return balanced probabilities for data in which the classes have these shares (Bayes' rule)."""
    return normalized(probs * shares)
