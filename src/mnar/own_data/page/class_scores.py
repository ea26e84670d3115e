"""Where a model errs, class by class, from its predictions for labels that it was not trained on.

The labels have another class distribution than the pool. The recall of a class and the confusion of two classes do not
depend on it, but the precision does: it is computed for samples with the class shares of the pool.

s_c    share of class c in the pool          r_cj    share of the samples of class c that are predicted as j
precision of j = s_j r_jj / sum over c of s_c r_cj
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.portfolio.member import Floats, Integers
from mnar.own_data.portfolio.scores import Score
from mnar.report.own_data.reliability import wilson_interval

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
NUM_DRAWS = 2000
MOST_PAIRS = 8
SMALLEST_CONFUSION = 0.01  # a smaller share of a class is not worth a sentence


class Confusion(NamedTuple):
    """What labelled samples are predicted as."""

    shares: Floats  # [k, k] share of each true class (row) that is predicted as each class; NaN without labels
    num_labels: Floats  # [k] number of labels of each class


class Pair(NamedTuple):
    """A share of the samples of the class `true` is predicted as the class `predicted`."""

    true: int
    predicted: int
    share: Score


def confusion_of(predicted: Integers, y: Integers, num_classes: int, *, repeats: int = 1) -> Confusion:
    """Count the predictions of each class. A repeated cross-validation predicts every label `repeats` times."""
    counts = np.bincount(y * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)
    num_predictions = counts.sum(1, keepdims=True)
    unknown = np.full(counts.shape, np.nan)
    shares = np.divide(counts, num_predictions, out=unknown, where=num_predictions > 0)
    return Confusion(shares, num_predictions[:, 0] / repeats)


def recall_scores(confusion: Confusion) -> list[Score | None]:
    """Return the recall of each class with Wilson's interval; None for a class without labels."""
    low, high = wilson_interval(np.diag(confusion.shares), confusion.num_labels)
    return _scores(np.diag(confusion.shares), low, high)


def precision_scores(confusion: Confusion, pool_shares: Interval | None, *, seed: int = 0) -> list[Score | None]:
    """Return the precision of each class for samples with the class shares of the pool; None without labels.

    Without `pool_shares` the class shares are those of the labels. A class without labels is left out of the sums.

    The interval comes from random draws of s_j r_jj and of the sum of the other s_c r_cj. Both are drawn from gamma
    distributions with the means and variances that the numbers of labels and the intervals of the shares give.
    """
    known = confusion.num_labels > 0
    n = np.where(known, confusion.num_labels, 1.0)[:, None]
    rates = np.where(known[:, None], confusion.shares, 0.0)
    # Laplace's rule: one label more that is right, and one label more that is wrong. So a class that was never confused
    # keeps some uncertainty. With half a label each, the interval covers the truth in 91 instead of 95 % of cases.
    is_own, num_others = np.eye(len(rates), dtype=bool), max(1, int(known.sum()) - 1)
    prior = np.where(is_own, 1.0, 1.0 / num_others)
    smoothed = np.where(known[:, None] & known, (n * rates + prior) / (n + 2), 0.0)
    shares, share_variances = _pool_shares(pool_shares, confusion)
    means = smoothed * shares[:, None]
    variances = smoothed * (1 - smoothed) / (n + 2) * shares[:, None] ** 2 + smoothed**2 * share_variances[:, None]
    is_wrong, rng = ~is_own, np.random.default_rng(seed)
    right = _gamma_draws(np.diag(means), np.diag(variances), rng)
    wrong = _gamma_draws((means * is_wrong).sum(0), (variances * is_wrong).sum(0), rng)
    drawn = np.divide(right, right + wrong, out=np.zeros_like(right), where=right + wrong > 0)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)

    all_predictions = (rates * shares[:, None]).sum(0)
    unknown = np.full(len(rates), np.nan)
    values = np.divide(np.diag(rates) * shares, all_predictions, out=unknown, where=known & (all_predictions > 0))
    return _scores(values, np.fmin(low, values), np.fmax(high, values))


def confused_pairs(confusion: Confusion, most: int = MOST_PAIRS) -> list[Pair]:
    """Return the pairs of classes that are confused most often.

    The order is that of the lower ends of the intervals, so that one mistake among two labels does not come first.
    """
    low, high = wilson_interval(confusion.shares, confusion.num_labels[:, None])
    is_confused = np.nan_to_num(confusion.shares) >= SMALLEST_CONFUSION
    np.fill_diagonal(is_confused, False)
    true, predicted = np.nonzero(is_confused)
    order = np.argsort(-low[true, predicted], kind="stable")[:most]
    return [
        Pair(int(i), int(j), Score(float(confusion.shares[i, j]), float(low[i, j]), float(high[i, j])))
        for i, j in zip(true[order], predicted[order], strict=True)
    ]


def _pool_shares(pool_shares: Interval | None, confusion: Confusion) -> tuple[Floats, Floats]:
    """Return class shares, 0 if unknown, and their variances."""
    if pool_shares is None:
        shares: Floats = confusion.num_labels / max(1.0, confusion.num_labels.sum())
        return shares, np.zeros_like(shares)
    is_known = ~np.isnan(pool_shares.shares) & (confusion.num_labels > 0)
    errors = np.where(is_known, (pool_shares.high - pool_shares.low) / (2 * Z), 0.0)
    return np.where(is_known, pool_shares.shares, 0.0), errors**2


def _gamma_draws(means: Floats, variances: Floats, rng: np.random.Generator) -> Floats:
    """Draw NUM_DRAWS times from gamma distributions with these means and variances, [draws, k]."""
    is_random = (means > 0) & (variances > 0)
    shape = np.divide(means**2, variances, out=np.ones_like(means), where=is_random)
    scale = np.divide(variances, means, out=np.zeros_like(means), where=is_random)
    draws: Floats = np.where(is_random, rng.standard_gamma(shape, (NUM_DRAWS, len(means))) * scale, means)
    return draws


def _scores(values: Floats, low: Floats, high: Floats) -> list[Score | None]:
    return [
        None if np.isnan(value) else Score(float(value), float(below), float(above))
        for value, below, above in zip(values, low, high, strict=True)
    ]
