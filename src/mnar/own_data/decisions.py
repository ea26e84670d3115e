"""Decide which predicted labels of the pool to accept, at a stated expected precision.

accept    the labels of this class with at least this confidence are expected to be right with the stated precision
review    the label is more likely right than wrong, but not sure enough
reject    the label is more likely wrong than right (its confidence is below 1/2)

The expected precision of the labels c with a confidence of at least t is, for the pool,

    TP / (TP + FP)    TP = π(c) R(c, c, t)    FP = sum over other classes j of  π(j) R(j, c, t)

symbol        here                  meaning
π             shares                [k] class shares of the pool
R(j, c, t)    in `_expected`        share of the samples of class j that get the label c with a confidence of at least t
n             num_labels            [k] number of labels
N             effective_labels      1 / sum of π(j)² / n(j): so many labels drawn from the pool at random would tell as
                                    much about the pool as the given labels do

R is counted among held-out labels, separately for each true class j. So the class distribution of the labels does not
matter. A class with few labels says little about its R, so the count is drawn towards the expectation of the model, as
if the model's expectation were PSEUDO_LABELS further labels of each class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.calibration import softmax
from mnar.own_data.portfolio.member import Floats, Integers, with_shares

DECISIONS = ("accept", "review", "reject")  # a decision code is a position in this tuple
ACCEPT, REVIEW, REJECT = range(3)
# A threshold is the confidence of a sample. In a batch of another size, the last digits of that confidence differ.
ROUNDING = 1e-5
LIKELY = 0.5  # a label with a smaller confidence is more likely wrong than right
# On the table "letter", the promise is 1.2 points too high on average with 10, and 0.3 points with 20. With 50, a tenth
# fewer labels are accepted, and the promise is no better.
PSEUDO_LABELS = 20.0
UNSEEN_ERRORS = 0.5  # as if so many further labels had been seen, and were wrong (Jeffreys' rule); no promise is 100 %
ENOUGH = (
    4.0  # with fewer labels than this times the smallest possible number, a note says that the promise is uncertain
)
FEWEST_LABELS = 3  # a class with fewer labels is hardly ever predicted in a cross-validation
SCALE_PRECISION = 10.0  # of the prior of the temperature, whose mean is 1; with few labels, nothing is changed
SMOOTHING = 1e-4  # how far a probability is moved towards 1/k, so that none is 0
MOST_NAMES = 10  # class names in a sentence
MOST_EXPLAINED = 3  # classes that get a sentence of their own
MOST_TO_LABEL = 3  # classes that the user should label first


class Decided(NamedTuple):
    """The decisions on some samples."""

    labels: Integers  # [n] the most probable class for the class shares of the pool
    confidences: Floats  # [n] calibrated probability of the label
    second: Integers  # [n] the second most probable class
    margins: Floats  # [n] confidence minus the probability of the second class
    codes: npt.NDArray[np.int8]  # [n] positions in DECISIONS


@dataclass(frozen=True, eq=False)
class Decisions:
    """A rule that decides on each sample separately, and what the rule promises."""

    precision: float  # the stated precision
    shares: Floats  # [k] class shares of the pool
    scale: float  # factor of the log-probabilities, which calibrates them
    thresholds: Floats  # [k] smallest accepted confidence; infinity: no label of the class is accepted
    expected_precision: Floats  # [k] of the accepted labels; NaN: no label of the class is accepted
    best_precision: Floats  # [k] the highest that any threshold reaches; NaN: the class is not predicted
    num_labels: Integers  # [k]
    effective_labels: float

    @property
    def promises(self) -> npt.NDArray[np.bool_]:
        """Whether a precision is promised for each class, [k]."""
        return np.isfinite(self.thresholds)

    def decide(self, balanced_probs: npt.NDArray[np.floating]) -> Decided:
        """Decide on samples with these balanced probabilities, [n, k]. The rows do not influence each other."""
        probs = _posterior(balanced_probs, self.shares, self.scale)
        rows = np.arange(len(probs))
        labels = probs.argmax(1)
        confidences = probs[rows, labels]
        probs[rows, labels] = -1.0
        second = probs.argmax(1)
        codes = np.where(confidences >= LIKELY, REVIEW, REJECT).astype(np.int8)
        codes[confidences >= self.thresholds[labels] - ROUNDING] = ACCEPT
        return Decided(labels, confidences, second, confidences - probs[rows, second], codes)

    def expected_overall(self, num_accepted: npt.NDArray[Any]) -> float:
        """Return the expected precision of all accepted labels, of which `num_accepted` [k] are of each class."""
        accepted = num_accepted > 0
        if not accepted.any():
            return float("nan")
        return float(num_accepted[accepted] @ self.expected_precision[accepted] / num_accepted.sum())

    def notes(self, class_names: Sequence[str]) -> list[str]:
        """Say in sentences for which classes no precision is promised, why, and how many labels would be needed."""
        return [*self._on_all_labels(class_names), *self._on_classes(class_names)]

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and lists that JSON can store exactly."""
        return {
            "precision": self.precision,
            "shares": self.shares.tolist(),
            "scale": self.scale,
            "thresholds": _finite_or_none(self.thresholds),
            "expected_precision": _finite_or_none(self.expected_precision),
            "best_precision": _finite_or_none(self.best_precision),
            "num_labels": self.num_labels.tolist(),
            "effective_labels": self.effective_labels,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Restore the rule from `to_dict`."""
        return cls(
            precision=float(stored["precision"]),
            shares=np.array(stored["shares"], np.float64),
            scale=float(stored["scale"]),
            thresholds=_or_instead(stored["thresholds"], np.inf),
            expected_precision=_or_instead(stored["expected_precision"], np.nan),
            best_precision=_or_instead(stored["best_precision"], np.nan),
            num_labels=np.array(stored["num_labels"], np.int64),
            effective_labels=float(stored["effective_labels"]),
        )

    def _on_all_labels(self, class_names: Sequence[str]) -> list[str]:
        """Say whether all labels together support the promise."""
        needed = labels_needed(self.precision)
        if self.effective_labels >= ENOUGH * needed:
            return []
        total, equivalent = int(self.num_labels.sum()), self.effective_labels
        told = (
            f"The {total:,} held-out labels tell as much about the pool as {equivalent:.0f} labels drawn from it at "
            "random"
        )
        if equivalent >= needed:
            return [
                f"{told}. The promised precision is therefore uncertain. With {ceil(ENOUGH * needed)} such labels it "
                f"would be much more certain.{self._to_label_first(class_names)}"
            ]
        times = f", about {needed / equivalent:.2g} times as many labels as now" if equivalent > 0 else ""
        return [
            f"{told}. That is too few to promise a precision of {self.precision:.1%}, so no label is accepted. At "
            f"least {ceil(needed)} are needed{times}.{self._to_label_first(class_names)}"
        ]

    def _to_label_first(self, class_names: Sequence[str]) -> str:
        """Name classes that have a larger share of the pool than of the labels; empty if there is no such class."""
        of_labels = self.num_labels / max(1, self.num_labels.sum()) + 1e-9  # equal shares may differ by rounding
        order = np.argsort(-(self.shares**2) / np.maximum(self.num_labels, 1e-9), kind="stable")
        short = [c for c in order if self.shares[c] > of_labels[c]][:MOST_TO_LABEL]
        if not short:
            return ""
        which = _listed([f"{class_names[c]!r} ({_counted(self.num_labels[c])})" for c in short])
        return (
            f" Label more samples of {which} first. Such samples are frequent in the pool, compared with their labels."
        )

    def _on_classes(self, class_names: Sequence[str]) -> list[str]:
        """Say for which single classes there is no promise."""
        notes = []
        without = [repr(name) for name, count in zip(class_names, self.num_labels, strict=True) if count == 0]
        if without:
            notes.append(
                f"There is no held-out label of {_listed(without)}, so the promised precision does not count errors on "
                f"samples of such a class. Label at least {FEWEST_LABELS} samples of each class."
            )
        few = [
            f"{name!r} ({_counted(count)})"
            for name, count in zip(class_names, self.num_labels, strict=True)
            if 0 < count < FEWEST_LABELS
        ]
        if few:
            notes.append(
                f"No label of {_listed(few)} is accepted, because a promise needs at least {FEWEST_LABELS} held-out "
                "labels of the class."
            )
        unsure = [
            (repr(name), best)
            for name, best, count in zip(class_names, self.best_precision, self.num_labels, strict=True)
            if best < self.precision and count >= FEWEST_LABELS
        ]
        if unsure and self.effective_labels >= labels_needed(self.precision):
            notes.append(f"{self._on_unsure(unsure)} Label more samples of the class, or choose a lower --precision.")
        return notes

    def _on_unsure(self, classes: Sequence[tuple[str, float]]) -> str:
        """Say how often the most confident labels of the classes are right. A class is a name and this share."""
        if len(classes) <= MOST_EXPLAINED:
            return " ".join(
                f"No label of {name} is accepted: its most confident labels are expected to be right in {best:.1%} of "
                f"the cases, less than {self.precision:.1%}."
                for name, best in classes
            )
        highest = max(best for _, best in classes)
        return (
            f"No label of {_listed([name for name, _ in classes])} is accepted: the most confident labels of each of "
            f"these classes are expected to be right in at most {highest:.1%} of the cases, less than "
            f"{self.precision:.1%}."
        )


def labels_needed(precision: float) -> float:
    """Return how many labels, drawn from the pool at random, are needed at least to promise this precision."""
    return UNSEEN_ERRORS * precision / (1 - precision)


def fit_decisions(
    balanced_probs: npt.NDArray[np.floating],
    y: Integers,
    shares: Floats,
    *,
    precision: float = 0.95,
    num_labels: Integers | None = None,
    pool_probs: npt.NDArray[np.floating] | None = None,
) -> Decisions:
    """Find the confidence thresholds of the classes.

    balanced_probs    [m, k] predictions of labelled samples by models that were not fitted to the label, as if all
                      classes were equally frequent, and roughly calibrated; several repeats of the same labels may be
                      stacked
    y                 [m] the classes of these samples
    shares            [k] class shares of the pool; NaN: unknown, counts as 0
    precision         the expected precision that accepted labels of each class must reach
    num_labels        [k] number of different labels of each class; None: `y` has every label once
    pool_probs        [n, k] balanced probabilities of the pool, or of a random sample of some thousand rows; None: the
                      held-out labels stand for the pool, which makes the thresholds coarser
    """
    shares, counts = _checked(balanced_probs, y, shares, precision, num_labels, pool_probs)
    num_rows = np.bincount(y, minlength=len(shares))
    to_pool = np.divide(shares, num_rows, out=np.zeros(len(shares)), where=num_rows > 0)[y]  # importance weights
    effective_labels = _effective_labels(shares, counts)
    of_labeled_classes = _effective_labels(np.where(counts > 0, shares, 0), counts)
    scale = _fit_scale(balanced_probs, y, shares, of_labeled_classes * to_pool / max(to_pool.sum(), 1e-300))
    # a label that was predicted twice counts half each time
    held_out = _Predicted(_posterior(balanced_probs, shares, scale), (counts / np.maximum(num_rows, 1))[y])
    if pool_probs is not None and len(pool_probs):
        pool = _Predicted(_posterior(pool_probs, shares, scale), np.full(len(pool_probs), 1 / len(pool_probs)))
    else:
        pool = _Predicted(held_out.probs, to_pool)

    thresholds, expected, best = np.full(len(shares), np.inf), *np.full((2, len(shares)), np.nan)
    highest = effective_labels / (effective_labels + UNSEEN_ERRORS)
    for c, confidences, values in _expected(held_out, y, counts, pool, shares):
        promised = np.minimum(values, highest)
        best[c] = promised.max()
        if best[c] >= precision and counts[c] >= FEWEST_LABELS:
            last = np.flatnonzero(promised >= precision)[-1]
            thresholds[c], expected[c] = confidences[last], promised[last]
    return Decisions(precision, shares, scale, thresholds, expected, best, counts, effective_labels)


class _Predicted(NamedTuple):
    """Samples with their calibrated probabilities for the class shares of the pool."""

    probs: Floats  # [n, k]
    weights: Floats  # [n] how much each sample counts


def _expected(
    held_out: _Predicted, y: Integers, num_labels: Integers, pool: _Predicted, shares: Floats
) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield each class that is predicted in the pool, its possible thresholds (falling), and their precisions."""
    in_pool, in_labels = _likely_by_class(pool.probs), _likely_by_class(held_out.probs)
    of_classes = np.maximum(pool.weights @ pool.probs, 1e-300)  # the model's own estimate of the class shares
    for c in range(len(shares)):
        rows, confidences = in_pool[c]
        if not len(rows):
            continue
        by_model = np.cumsum(pool.weights[rows, None] * pool.probs[rows], axis=0) / of_classes  # [thresholds, k]
        labeled_rows, labeled_confidences = in_labels[c]
        counted = np.zeros((1 + len(labeled_rows), len(shares)))
        counted[1 + np.arange(len(labeled_rows)), y[labeled_rows]] = held_out.weights[labeled_rows]
        reached = np.searchsorted(-labeled_confidences, -confidences, side="right")
        counted = np.cumsum(counted, axis=0)[reached]  # [thresholds, k]
        rates = (counted + PSEUDO_LABELS * by_model) / (num_labels + PSEUDO_LABELS)  # R(j, c, t)
        masses = shares * rates
        # Rows of equal confidence are accepted together, so only the last of them is a threshold.
        is_last = np.append(confidences[1:] < confidences[:-1], True)
        yield c, confidences[is_last], (masses[:, c] / np.maximum(masses.sum(1), 1e-300))[is_last]


def _likely_by_class(probs: Floats) -> list[tuple[Integers, Floats]]:
    """Return for each class the rows that are labelled with it and are likely right, the most confident first."""
    labels, confidences = probs.argmax(1), probs.max(1)
    order = np.lexsort((-confidences, labels))
    order = order[confidences[order] >= LIKELY]
    parts = np.split(order, np.searchsorted(labels[order], np.arange(1, probs.shape[1])))
    return [(rows, confidences[rows]) for rows in parts]


def _posterior(balanced_probs: npt.NDArray[np.floating], shares: Floats, scale: float) -> Floats:
    """Return calibrated probabilities for the class shares of the pool. The most probable class does not change."""
    return softmax(scale * _pool_logs(balanced_probs, shares))


def _pool_logs(balanced_probs: npt.NDArray[np.floating], shares: Floats) -> Floats:
    # contiguous rows: otherwise the order of a sum, and so its last digit, could depend on the number of rows
    probs = with_shares(np.ascontiguousarray(balanced_probs, dtype=np.float64), shares)
    logs: Floats = np.log((1 - SMOOTHING) * probs + SMOOTHING / probs.shape[1])
    return logs


def _fit_scale(balanced_probs: npt.NDArray[np.floating], y: Integers, shares: Floats, weights: Floats) -> float:
    """Return the factor of the log-probabilities that minimises the weighted log-loss of the held-out labels."""
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]

    logs = _pool_logs(balanced_probs, shares)
    logs -= logs.max(1, keepdims=True)
    of_right = logs[np.arange(len(y)), y]

    def loss(scale: float) -> float:
        log_sums = np.log(np.exp(scale * logs).sum(1))
        return float(weights @ (log_sums - scale * of_right) + SCALE_PRECISION / 2 * (scale - 1) ** 2)

    return float(minimize_scalar(loss, bounds=(0.05, 5.0), method="bounded").x)


def _effective_labels(shares: Floats, num_labels: Integers) -> float:
    """Return how many labels drawn from the pool at random would tell as much about the pool as these labels do."""
    present = shares > 0
    if not present.any() or (num_labels[present] == 0).any():
        return 0.0
    return float(shares.sum() ** 2 / (shares[present] ** 2 / num_labels[present]).sum())


def _checked(
    balanced_probs: npt.NDArray[np.floating],
    y: Integers,
    shares: Floats,
    precision: float,
    num_labels: Integers | None,
    pool_probs: npt.NDArray[np.floating] | None,
) -> tuple[Floats, Integers]:
    """Return shares that sum to 1, and the number of labels of each class."""
    if not 0 < precision < 1:
        raise ValueError(
            f"precision is {precision}; it must be above 0 and below 1, because no label is certain. "
            "Choose e.g. --precision 0.95"
        )
    num_classes = len(shares)
    if num_classes < 2:
        raise ValueError(f"there are class shares for {num_classes} class; a decision needs at least two classes")
    for name, probs in (("balanced_probs", balanced_probs), ("pool_probs", pool_probs)):
        if probs is not None and (probs.ndim != 2 or probs.shape[1] != num_classes):
            raise ValueError(
                f"{name} has shape {probs.shape}, but there are {num_classes} class shares; give one column per class"
            )
    if len(y) != len(balanced_probs) or len(y) == 0:
        raise ValueError(
            f"there are {len(balanced_probs)} predictions for {len(y)} held-out labels; give one prediction per label, "
            "and at least one label"
        )
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(f"the labels go from {y.min()} to {y.max()}; classes are numbered from 0 to {num_classes - 1}")
    known = np.nan_to_num(np.asarray(shares, np.float64), nan=0.0)
    if known.min() < 0 or not 0 < known.sum() < np.inf:
        raise ValueError(f"the class shares are {shares}; give numbers that are not negative, at least one positive")
    counts = np.bincount(y, minlength=num_classes) if num_labels is None else np.asarray(num_labels, np.int64)
    return known / known.sum(), counts


def _listed(names: Sequence[str]) -> str:
    """Join names to a list in a sentence."""
    shown = [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else list(names)
    return " and ".join(shown) if len(shown) < 3 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _counted(count: int) -> str:
    return f"{count:,} label" if count == 1 else f"{count:,} labels"


def _finite_or_none(values: Floats) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _or_instead(values: Sequence[float | None], instead: float) -> Floats:
    return np.array([instead if value is None else value for value in values], np.float64)
