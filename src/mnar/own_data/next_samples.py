"""Choose the samples of the pool that should be labelled next.

1. Every row of the pool gets a weight: the probability that its predicted class is wrong, times the need of its
   probable classes for labels. A class with few labels, or with a wide interval of its share of the pool, needs labels.
   Every row gets a small weight in addition, because the model may be wrong with certainty, e.g. about the rows of a
   class without any label.
2. A label also tells about the rows that resemble its row. Row j *covers* row i with exp(-d² / width), where d is the
   distance of their features and `width` is the mean squared distance of a row of the pool from its nearest label. A
   row is covered by the labelled or chosen row that covers the row best.
3. The rows are chosen one after another. Each one adds as much weighted cover as possible. A near-duplicate of a
   labelled or chosen row adds almost nothing, and an outlier covers only itself, so neither is chosen early.

In simulations (benchmarks/next_labels.py), this choice needs fewer labels than random choice and than the least
confident rows. Farthest-point choice (k-center) among uncertain rows was worse than random choice in the first rounds,
because the farthest rows are outliers.

Greedy choice of cover is within 1 - 1/e of the best choice (Nemhauser, Wolsey and Fisher, 1978). A cover can only grow,
so the gain of a row can only fall, and most gains need not be computed again (Minoux, 1978). Large pools are sampled
with priorities (Duffield, Lund and Thorup, Journal of the ACM 2007).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.portfolio.member import Features, Floats, Integers

Numbers = npt.NDArray[np.floating]

EVERY_ROW = 0.1  # weight that every row has in addition; the other part of the weight is at most 1
MOST_ROWS = 10_000  # rows of the pool among which the choice is made; the cost grows with the square of this number
MOST_LABELED = 20_000  # labelled rows whose cover counts
MOST_SPREAD = 5000  # rows that are chosen for their cover; a larger budget takes further rows by their weight
SMALLEST_GAIN = 1e-6  # relative to the sum of all weights; a smaller gain is that of a duplicate
FEW = 0.5  # a class has few labels if it has less than this part of the mean number of labels
CONTESTED = 0.5  # a row is contested if its second probability is at least this part of its largest
FAR = 2.0  # a row is unlike all labelled rows if it is this many times as far (squared) as the mean row
LARGEST_FEATURE = 1e4  # of centred features, in units of their size; squares of larger numbers are not exact
ROWS_AT_A_TIME = 65_536
COLUMNS_AT_A_TIME = 512
GAINS_AT_A_TIME = 32


class NextSamples(NamedTuple):
    """The samples to label next."""

    rows: Integers  # [budget] positions in the pool, the most useful first
    reasons: list[str]  # one per row, e.g. "few labels of class 3; contested between 3 and 8"


def next_samples(
    probs: Numbers,
    features: Numbers,
    labeled_features: Numbers,
    num_labels: npt.ArrayLike,
    shares: Interval | None,
    *,
    budget: int,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
) -> NextSamples:
    """Choose `budget` rows of the pool, or all rows if the pool has fewer.

    probs               [n, k] balanced probabilities of the pool, i.e. as if all classes were equally frequent
    features            [n, d] of the pool; rows with similar features should have similar labels
    labeled_features    [m, d]
    num_labels          [k] number of labels of each class; 0 is allowed
    shares              estimated class shares of the pool; None: not known
    seed                seed of the random draw from a pool of more than MOST_ROWS rows
    class_names         [k] for the reasons; None: the classes are numbered from 0
    """
    counts = np.asarray(num_labels, dtype=np.int64)
    _check(probs, features, labeled_features, counts, budget)
    if len(probs) == 0:
        return NextSamples(np.zeros(0, np.int64), [])
    rng = np.random.default_rng(seed)
    row_weights = weights_of_rows(probs, class_needs(counts, shares))
    candidates, weights = priority_sample(row_weights, MOST_ROWS, rng)
    x, labeled = _comparable(features[candidates], _some_rows(labeled_features, MOST_LABELED, rng))
    nearest = squared_distances_to_nearest(x, labeled)
    width = _width(x, nearest)
    spread = most_covering(x, weights, np.exp(-nearest / width), width, min(budget, MOST_SPREAD))
    rows = candidates[spread]
    remarks = [
        "unlike every labelled sample" if far else "stands for similar samples" for far in nearest[spread] > FAR * width
    ]
    if len(rows) < budget:
        rest = np.argsort(-row_weights, kind="stable")
        rest = rest[~np.isin(rest, rows)][: budget - len(rows)]
        rows = np.concatenate([rows, rest])
        remarks += ["less useful than the samples before"] * len(rest)
    return NextSamples(rows, _reasons(probs[rows], counts, remarks, class_names))


def class_needs(num_labels: Integers, shares: Interval | None) -> Floats:
    """Return how much each class needs further labels, [k], at most 1.

    A standard error falls with the square root of the number of labels. If there is an estimate of the class shares,
    half of the need is the width of its interval.
    """
    scarcity: Floats = 1 / np.sqrt(num_labels + 1.0)
    scarcity /= scarcity.max()
    if shares is None:
        return scarcity
    widths = np.nan_to_num(shares.high - shares.low, nan=1.0)
    needs: Floats = (scarcity + widths / max(widths.max(), np.finfo(float).tiny)) / 2
    return needs


def weights_of_rows(probs: Numbers, needs: Floats) -> Floats:
    """Return the weight of each row: the probability of an error times the expected need, plus EVERY_ROW."""
    weights = np.empty(len(probs))
    for i in range(0, len(probs), ROWS_AT_A_TIME):
        block = probs[i : i + ROWS_AT_A_TIME]
        weights[i : i + len(block)] = (1 - block.max(1)) * (block @ needs)
    if not np.isfinite(weights).all():
        raise ValueError("the probabilities of the pool contain values that are not finite numbers; train again")
    return np.maximum(weights, 0) + EVERY_ROW


def priority_sample(weights: Floats, size: int, rng: np.random.Generator) -> tuple[Integers, Floats]:
    """Draw at most `size` rows, heavy rows more often, and return them with new weights.

    For any set of rows, the expected sum of the new weights of its drawn rows is the sum of their weights.
    """
    if len(weights) <= size:
        return np.arange(len(weights)), weights
    priorities = weights / (1 - rng.random(len(weights)))
    order = np.argpartition(-priorities, size)
    drawn = np.sort(order[:size])
    return drawn, np.maximum(weights[drawn], priorities[order[size]])


def squared_distances_to_nearest(x: Features, others: Features) -> Features:
    """Return the squared distance of each row of x from the nearest of the other rows, or infinity without any."""
    nearest = np.full(len(x), np.inf, np.float32)
    for i in range(0, len(others), COLUMNS_AT_A_TIME):
        np.minimum(nearest, _squared_distances(x, others[i : i + COLUMNS_AT_A_TIME]).min(1), out=nearest)
    return nearest


def most_covering(x: Features, weights: Floats, cover: Numbers, width: float, budget: int) -> Integers:
    """Choose rows one after another, each of which adds the most weighted cover. Stop early if only duplicates remain.

    x          [n, d]
    weights    [n]
    cover      [n] by the labelled rows, from 0 to 1
    width      squared distance at which the cover is 1/e
    """
    weights32, cover = weights.astype(np.float32), cover.astype(np.float32)

    def cover_by(columns: Integers) -> Features:
        covered: Features = np.exp(_squared_distances(x, x[columns]) / np.float32(-width))
        return covered

    def gains(columns: Integers) -> Features:
        gained: Features = weights32 @ np.maximum(cover_by(columns) - cover[:, None], 0)
        return gained

    blocks = [np.arange(i, min(i + COLUMNS_AT_A_TIME, len(x))) for i in range(0, len(x), COLUMNS_AT_A_TIME)]
    # Gains only fall, so a gain that was computed earlier is an upper bound.
    bounds = np.concatenate([gains(block) for block in blocks])
    smallest = SMALLEST_GAIN * weights.sum()
    chosen = list[int]()
    while len(chosen) < min(budget, len(x)):
        best = _best(bounds, gains)
        if bounds[best] <= smallest:
            break
        chosen.append(best)
        np.maximum(cover, cover_by(np.array([best]))[:, 0], out=cover)
        bounds[best] = -np.inf
    return np.array(chosen, dtype=np.int64)


def _best(bounds: Features, gains: Callable[[Integers], Features]) -> int:
    """Return the row with the largest gain. Bounds are replaced by gains until the largest one is a gain."""
    is_gain = np.isneginf(bounds)  # chosen rows are out of the question
    while not is_gain[best := int(bounds.argmax())]:
        size = min(GAINS_AT_A_TIME, len(bounds))
        largest = np.argpartition(bounds, len(bounds) - size)[-size:]
        outdated = np.append(largest[~is_gain[largest]], best)
        bounds[outdated] = gains(outdated)
        is_gain[outdated] = True
    return best


def _squared_distances(a: Features, b: Features) -> Features:
    squared: Features = a @ b.T
    squared *= -2
    squared += np.einsum("ij,ij->i", a, a)[:, None]
    squared += np.einsum("ij,ij->i", b, b)
    return np.maximum(squared, 0, out=squared)


def _comparable(x: Numbers, labeled: Numbers) -> tuple[Features, Features]:
    """Centre and scale both by the mean and the size of x, so that squared distances are exact enough in float32."""
    for rows, kind in ((x, "pool"), (labeled, "labelled samples")):
        if not np.isfinite(rows).all():
            raise ValueError(f"the features of the {kind} contain values that are not finite numbers; remove them")
    center = x.mean(0, dtype=np.float64)
    size = float(np.sqrt(np.square(x - center).mean()))

    def scaled(rows: Numbers) -> Features:
        relative: Floats = np.clip((rows - center) / (size or 1.0), -LARGEST_FEATURE, LARGEST_FEATURE)
        return relative.astype(np.float32)

    return scaled(x), scaled(labeled)


def _width(x: Features, nearest: Features) -> float:
    """Return the mean squared distance from the nearest label, or from the mean row if there is no label."""
    width = float(nearest.mean())
    if not np.isfinite(width):
        width = float(x.var(0).sum())
    return width or 1.0


def _some_rows(rows: Numbers, size: int, rng: np.random.Generator) -> Numbers:
    return rows if len(rows) <= size else rows[np.sort(rng.permutation(len(rows))[:size])]


def _reasons(probs: Numbers, counts: Integers, remarks: Sequence[str], class_names: Sequence[str] | None) -> list[str]:
    """Return for each row why it is useful; its remark is used if there is no better reason."""
    names = [str(c) for c in range(len(counts))] if class_names is None else class_names
    has_few = counts < FEW * counts.mean()
    reasons = []
    for row, remark in zip(probs, remarks, strict=True):
        second, first = np.argsort(row, kind="stable")[-2:]
        found = []
        if has_few[first]:
            found.append(f"few labels of class {names[first]}")
        if row[second] >= CONTESTED * row[first]:
            found.append(f"contested between {names[first]} and {names[second]}")
        reasons.append("; ".join(found) or remark)
    return reasons


def _check(probs: Numbers, features: Numbers, labeled_features: Numbers, counts: Integers, budget: int) -> None:
    if budget < 1:
        raise ValueError(f"the budget is {budget}; choose at least one sample")
    if probs.ndim != 2 or features.ndim != 2 or len(probs) != len(features):
        raise ValueError(
            f"the probabilities have shape {probs.shape} and the features {features.shape}; give both as tables with "
            "one line per sample of the pool"
        )
    if probs.shape[1] != len(counts) or len(counts) < 2:
        raise ValueError(
            f"there are probabilities of {probs.shape[1]} classes and numbers of labels of {len(counts)} classes; give "
            "the same number of classes, at least two"
        )
    if labeled_features.ndim != 2 or labeled_features.shape[1] != features.shape[1]:
        raise ValueError(
            f"the features of the labelled samples have shape {labeled_features.shape} and those of the pool "
            f"{features.shape}; give the same number of columns"
        )
