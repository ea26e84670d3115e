"""Calibrate the probabilities of a classifier with a temperature and a bias per class.

Alexandari, Kundaje and Shrikumar, "Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat at Label Shift
Adaptation", ICML 2020.

paper    here    meaning
1 / T    scale   factor of the log-probabilities
b        bias    [k], added to the scaled log-probabilities
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.probe import Floats, Integers

# How far a probability is moved towards 1/k: a class that is missing in a fold is unlikely there, but not impossible.
SMOOTHING = 1e-3
BIAS_PRECISION = 0.3  # of the prior N(0, 1/0.3) on the bias of a class; it matters only for classes with few labels
SCALE_PRECISION = 10.0  # of the prior on the scale: a few confident errors must not invert all probabilities


class Calibration(NamedTuple):
    """A calibration. Calling it maps probabilities [n, k] to calibrated probabilities [n, k]."""

    scale: float
    bias: Floats  # [k]

    def __call__(self, probs: npt.NDArray[np.floating]) -> Floats:
        return softmax(self.scale * smoothed_log(probs) + self.bias)


class CalibrationFit(NamedTuple):
    """A fitted calibration, with the derivatives that a bootstrap needs."""

    best: Calibration
    row_scores: Floats  # [m, 1 + k]: gradient of each row's loss at `best`, without the row's weight
    hessian: Floats  # [1 + k, 1 + k]: of the whole loss, including the prior

    def resampled(self, extra_weights: Floats, rng: np.random.Generator) -> Calibration:
        """Return the calibration of a bootstrap sample, by one Newton step from `best`.

        `extra_weights` are the row weights of the bootstrap sample minus the row weights of the fit. The centre of the
        prior is drawn as well. Otherwise a class with one label, which no resampling varies, would look certain.
        """
        scale, bias = self.best
        precision = _prior_precision(len(bias))
        of_prior = np.sqrt(precision) * rng.standard_normal(len(precision))
        step = np.linalg.solve(self.hessian, extra_weights @ self.row_scores + of_prior)
        return Calibration(max(0.0, float(scale - step[0])), bias - step[1:])


def fit_calibration(logs: Floats, y: Integers, weights: Floats) -> CalibrationFit:
    """Find the posterior mode by Newton's method with step halving; the loss is convex.

    `logs` are the smoothed log-probabilities of out-of-fold predictions. With few labels the mode is near the identity.
    """
    rows = np.arange(len(y))
    identity = np.eye(1, 1 + logs.shape[1])[0]  # scale 1, no bias
    precision = _prior_precision(logs.shape[1])

    def loss(theta: Floats) -> float:
        scores = theta[0] * logs + theta[1:]
        largest = scores.max(1)
        log_sums = largest + np.log(np.exp(scores - largest[:, None]).sum(1))
        return float(weights @ (log_sums - scores[rows, y]) + precision @ (theta - identity) ** 2 / 2)

    theta, now = identity, loss(identity)
    for _ in range(100):
        row_scores, hessian = _derivatives(theta, logs, y, weights)
        gradient = weights @ row_scores + precision * (theta - identity)
        step = np.linalg.solve(hessian, gradient)
        if gradient @ step < 1e-9 * len(y):
            break
        while (then := loss(theta - step)) > now and np.abs(step).max() > 1e-12:
            step = step / 2
        theta, now = theta - step, then
    return CalibrationFit(Calibration(max(0.0, float(theta[0])), theta[1:]), row_scores, hessian)


def _derivatives(theta: Floats, logs: Floats, y: Integers, weights: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of each row's loss and the Hessian of the whole loss at `theta` = (scale, bias)."""
    probs = softmax(theta[0] * logs + theta[1:])
    rows = np.arange(len(y))
    expected = (probs * logs).sum(1)
    row_scores = np.column_stack([expected - logs[rows, y], probs])
    row_scores[rows, 1 + y] -= 1
    weighted = weights[:, None] * probs
    hessian = np.diag(_prior_precision(logs.shape[1]))
    hessian[0, 0] += weights @ ((probs * logs**2).sum(1) - expected**2)
    hessian[0, 1:] = hessian[1:, 0] = (weighted * (logs - expected[:, None])).sum(0)
    hessian[1:, 1:] += np.diag(weighted.sum(0)) - weighted.T @ probs
    return row_scores, hessian


def _prior_precision(num_classes: int) -> Floats:
    return np.array([SCALE_PRECISION] + num_classes * [BIAS_PRECISION])


def smoothed_log(probs: npt.NDArray[np.floating]) -> Floats:
    """Return the logarithms of probabilities that are first moved a little towards 1/k, so that none is 0."""
    logs: Floats = np.log((1 - SMOOTHING) * probs.astype(np.float64) + SMOOTHING / probs.shape[1])
    return logs


def softmax(logits: Floats) -> Floats:
    exponentials: Floats = np.exp(logits - logits.max(1, keepdims=True))
    sums: Floats = exponentials.sum(1, keepdims=True)
    return exponentials / sums
