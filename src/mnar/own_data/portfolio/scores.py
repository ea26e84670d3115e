"""Estimated scores of a model on the pool, and the comparison of two models, from a cross-validation.

The labels have another class distribution than the pool, so recalls are estimated class by class and then averaged:
with equal weights for the balanced accuracy, with the estimated shares of the pool for the accuracy on the pool.
"""

from __future__ import annotations

from math import exp
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.portfolio.combination import FLOOR
from mnar.own_data.portfolio.member import Floats, Integers, with_shares

LEVEL = 0.95  # of the intervals of scores
# A verdict uses an 80 % interval: when it excludes zero, the sign is wrong in about one case of ten.
VERDICT_LEVEL = 0.80
# A smaller difference of the probability is not worth a claim, and the folds of a cross-validation, which share labels,
# cannot show it.
SMALLEST_EFFECT = 0.01
NO_DIFFERENCE = 0.02  # an interval within 1 plus or minus this shows that there is no difference worth mentioning
FEWEST_LABELS = 20  # with fewer labels there is no claim
PSEUDO_LABELS = 3  # the variance within all classes counts as so many labels in the variance of each class
SMALLEST_VARIANCE = 0.01  # of a difference of log-probabilities; equal models must not look certain


class Score(NamedTuple):
    """An estimated score with its interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """Whether the pool helped: the model that uses the pool, compared with the best model of the labels alone."""

    ratio: Score  # how many times more probable the right class is, with an 80 % interval; 1: no difference
    balanced_accuracy: Score  # difference of the balanced accuracies, with a 95 % interval
    num_labels: int

    @property
    def verdict(self) -> str:
        """One of "helped", "did harm", "made no difference" and "cannot tell"."""
        if self.num_labels < FEWEST_LABELS:
            return "cannot tell"
        if self.ratio.low > 1 + SMALLEST_EFFECT:
            return "helped"
        if self.ratio.high < 1 - SMALLEST_EFFECT:
            return "did harm"
        is_near_one = self.ratio.low > 1 - NO_DIFFERENCE and self.ratio.high < 1 + NO_DIFFERENCE
        return "made no difference" if is_near_one else "cannot tell"


def recalls(predicted: Integers, y: Integers, num_classes: int) -> tuple[Floats, Floats]:
    """Return the recall of each class and its variance, [k]; NaN for a class without labels.

    predicted    [repeats, m] predicted classes of the labelled rows
    """
    is_right = (predicted == y).mean(0)
    values, variances = np.full((2, num_classes), np.nan)
    for c in np.unique(y):
        of_class = is_right[y == c]
        smoothed = (of_class.sum() + 1) / (len(of_class) + 2)  # Laplace's rule: one correct label is no recall of 1
        values[c], variances[c] = of_class.mean(), smoothed * (1 - smoothed) / len(of_class)
    return values, variances


def weighted_score(values: Floats, variances: Floats, shares: Floats) -> Score:
    """Return the mean of the recalls, weighted with class shares, and its interval."""
    known = ~np.isnan(values)
    weights = shares[known] / max(shares[known].sum(), 1e-12)
    mean, error = float(weights @ values[known]), float(np.sqrt(weights**2 @ variances[known]))
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    return Score(mean, max(0.0, mean - reach), min(1.0, mean + reach))


def class_scores(values: Floats, variances: Floats) -> list[Score | None]:
    """Return the recall of each class with its interval; None for a class without labels."""
    one_class = np.eye(len(values))
    return [
        None if np.isnan(values[c]) else weighted_score(values, variances, one_class[c]) for c in range(len(values))
    ]


def compare(with_pool: Floats, labels_alone: Floats, y: Integers) -> Comparison:
    """Compare two models in pairs on the same labelled rows; probabilities [repeats, m, k]."""
    rows = np.arange(len(y))
    log_ratio = (np.log(with_pool[:, rows, y] + FLOOR) - np.log(labels_alone[:, rows, y] + FLOOR)).mean(0)
    mean, error = _class_mean(log_ratio, y, _shrunk_variances(log_ratio, y) + SMALLEST_VARIANCE)
    reach = NormalDist().inv_cdf((1 + VERDICT_LEVEL) / 2) * error
    ratio = Score(exp(mean), exp(mean - reach), exp(mean + reach))

    gain = ((with_pool.argmax(2) == y) * 1.0 - (labels_alone.argmax(2) == y)).mean(0)
    mean, error = _class_mean(gain, y, _bounded_variances(gain, y))
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    return Comparison(ratio, Score(mean, max(-1.0, mean - reach), min(1.0, mean + reach)), len(y))


def _class_mean(values: Floats, y: Integers, variances: Floats) -> tuple[float, float]:
    """Return the mean over classes of the class means, and its standard error.

    variances    variance of a value in each class that has labels
    """
    classes, counts = np.unique(y, return_counts=True)
    mean = np.mean([values[y == c].mean() for c in classes])
    return float(mean), float(np.sqrt((variances / counts).sum())) / len(classes)


def _shrunk_variances(values: Floats, y: Integers) -> Floats:
    """Return the variance within each class that has labels, drawn towards the variance within all classes.

    One label has no variance of its own, and a class with two or three labels often has too small a variance by chance.
    """
    classes, counts = np.unique(y, return_counts=True)
    spread = np.array([((values[y == c] - values[y == c].mean()) ** 2).sum() for c in classes])
    free = len(values) - len(classes)
    pooled = spread.sum() / free if free else float(((values - values.mean()) ** 2).sum() / max(len(values) - 1, 1))
    variances: Floats = (spread + PSEUDO_LABELS * pooled) / (counts - 1 + PSEUDO_LABELS)
    return variances


def _bounded_variances(values: Floats, y: Integers) -> Floats:
    """Return the variance of values between -1 and 1, around 0, in each class that has labels.

    A class in which no prediction differs still has a variance, as if half a label differed.
    """
    of_classes = [values[y == c] for c in np.unique(y)]
    return np.array([((of_class**2).sum() + 0.5) / (len(of_class) + 1) for of_class in of_classes])


class CrossValidated(NamedTuple):
    """The predictions of the chosen model for labels that it was not fitted to."""

    y: Integers  # [n] the labels, once per repeat of the cross-validation
    balanced_probs: Floats  # [n, k] as if all classes were equally frequent
    probs: Floats  # [n, k] whose arg-max is the prediction
    confidence: Floats  # [n] probability of the predicted class, for samples with the class distribution of the pool
    weight: Floats  # [n] gives the labels the class distribution of the pool
    repeats: int

    @property
    def is_right(self) -> npt.NDArray[np.bool_]:
        is_right: npt.NDArray[np.bool_] = self.probs.argmax(1) == self.y
        return is_right


def cross_validated(balanced_probs: Floats, probs: Floats, y: Integers, shares: Floats) -> CrossValidated:
    """Collect the predictions for all repeats.

    balanced_probs, probs    [repeats, m, k] as if all classes were equally frequent, and those that decide
    shares                   [k] estimated shares of the pool
    """
    num_classes = probs.shape[-1]
    labels, flat = np.tile(y, len(probs)), probs.reshape(-1, num_classes)
    balanced, predicted = balanced_probs.reshape(-1, num_classes), flat.argmax(1)
    posterior = with_shares(balanced, shares)
    counts = np.bincount(labels, minlength=num_classes)
    weight: Floats = (shares / np.maximum(counts, 1))[labels]
    return CrossValidated(labels, balanced, flat, posterior[np.arange(len(labels)), predicted], weight, len(probs))
