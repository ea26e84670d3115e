"""Combine the members: a weighted sum of their log-probabilities, with weights from the cross-validation.

The weights are not negative and minimise the log-loss on labels that the members were not fitted to. Every class counts
the same in this loss, so a class with few labels is not neglected. The sum of the weights acts as a temperature, so the
combination is calibrated too.
"""

from __future__ import annotations

import numpy as np

from mnar.own_data.portfolio.cross_validation import Folds, Tried
from mnar.own_data.portfolio.member import Floats, Integers, softmax

FLOOR = 0.01  # added to every probability: one member can exclude a class only by a factor of 100
TOWARDS_EQUAL = 0.001  # strength of the prior that pulls the weights towards equal ones
LARGEST_CLASS_WEIGHT = 100.0  # of a label, relative to the label with the smallest weight
SMALLEST_WEIGHT = 0.03  # relative to their sum; members with a smaller weight are dropped
SMALLEST_SUM = 0.01  # of all weights; with less, no prediction could be told from a guess


def combine(log_probs: Floats, weights: Floats) -> Floats:
    """Return the combined probabilities, [n, k], of log-probabilities [members, n, k]."""
    return softmax(np.tensordot(weights, log_probs, 1))


def logs(probs: Floats) -> Floats:
    """Return the logarithms of floored probabilities."""
    floored: Floats = np.log(probs + FLOOR)
    return floored


def label_weights(y: Integers, shares: Floats) -> Floats:
    """Return a weight for each label, so that the classes have these shares in a weighted mean; the sum is 1.

    Weights are clipped: a single label of a rare class must not decide alone.
    """
    counts = np.bincount(y, minlength=len(shares))
    weights = np.divide(shares, counts, out=np.zeros(len(shares)), where=counts > 0)
    smallest = weights[weights > 0].min(initial=1.0)
    of_labels: Floats = np.minimum(weights, LARGEST_CLASS_WEIGHT * smallest)[y]
    of_labels = of_labels + 1e-12
    relative: Floats = of_labels / of_labels.sum()
    return relative


def fit_weights(log_probs: Floats, y: Integers, shares: Floats) -> Floats:
    """Return the weights [members] that minimise the weighted log-loss.

    log_probs    [members, n, k] of labelled rows, by members that were not fitted to them
    shares       [k] how much each class counts
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    num_members, rows = len(log_probs), np.arange(len(y))
    of_label, of_right = label_weights(y, shares), log_probs[:, rows, y]

    def loss_and_gradient(weights: Floats) -> tuple[float, Floats]:
        probs = combine(log_probs, weights)
        loss = -of_label @ np.log(np.maximum(probs[rows, y], 1e-300))
        gradient = np.einsum("nk,mnk,n->m", probs, log_probs, of_label) - of_right @ of_label
        away = weights - 1 / num_members
        prior = TOWARDS_EQUAL * num_members
        return float(loss + prior / 2 * away @ away), gradient + prior * away

    start = np.full(num_members, 1 / num_members)
    bounds = [(0.0, None)] * num_members
    weights: Floats = minimize(loss_and_gradient, start, jac=True, bounds=bounds, method="L-BFGS-B").x
    return weights


def combined_weights(tried: list[Tried], folds: Folds, shares: Floats) -> Floats:
    """Return the weight of each member, from all labels. A member with a tiny weight gets 0.

    If no member predicts better than chance, all get the same tiny weight, and every prediction is nearly undecided.
    """
    every, y = _all_rows(tried), np.tile(folds.y, len(folds.fold))
    weights = fit_weights(every, y, shares)
    if weights.sum() < SMALLEST_SUM:
        return np.full(len(weights), SMALLEST_SUM / len(weights))
    kept = weights >= SMALLEST_WEIGHT * weights.sum()
    if kept.all():
        return weights
    again = np.zeros(len(weights))
    again[kept] = fit_weights(every[kept], y, shares)
    return again


def out_of_fold_combination(tried: list[Tried], folds: Folds, shares: Floats) -> Floats:
    """Return the combined probabilities [repeats, m, k] of labelled rows, with weights from the other folds."""
    every = np.stack([logs(member.probs_labeled) for member in tried])
    combined = np.zeros(every.shape[1:])
    for repeat, fold in enumerate(folds.fold):
        for j in range(folds.num_folds):
            held_out = fold == j
            weights = fit_weights(every[:, repeat, ~held_out], folds.y[~held_out], shares)
            combined[repeat, held_out] = combine(every[:, repeat, held_out], weights)
    return combined


def _all_rows(tried: list[Tried]) -> Floats:
    """Return the log-probabilities of all repeats, [members, repeats * m, k]."""
    every = np.stack([logs(member.probs_labeled) for member in tried])
    return every.reshape(len(tried), -1, every.shape[-1])
