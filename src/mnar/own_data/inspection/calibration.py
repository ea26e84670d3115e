"""From a classifier's probabilities to ones that come true as often as they say: a temperature and a bias per class.

Alexandari, Kundaje and Shrikumar, "Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat at Label Shift
Adaptation", ICML 2020.

paper    here    meaning
1 / T    scale   of the log-probabilities
b        bias    [k], added to them
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.probe import Floats, Integers

SMOOTHING = 1e-3  # of a probability towards 1/k: a class that a fold has not seen is unlikely there, not impossible
BIAS_PRECISION = 0.3  # of the prior N(0, 1/0.3) on a class's bias, which matters to classes of a few labels only
SCALE_PRECISION = 10.0  # a few rows that are sure and wrong are not to turn all probabilities round


class Calibration(NamedTuple):
    scale: float
    bias: Floats  # [k]

    def __call__(self, probs: npt.NDArray[np.floating]) -> Floats:
        return softmax(self.scale * smoothed_log(probs) + self.bias)


class CalibrationFit(NamedTuple):
    best: Calibration
    row_scores: Floats  # [m, 1 + k]: gradient of each row's loss at the best, without its weight
    hessian: Floats  # [1 + k, 1 + k]: of the whole loss, the prior's part included

    def resampled(self, extra_weights: Floats, rng: np.random.Generator) -> Calibration:
        """What a bootstrap sample would give, by one Newton step; `extra_weights` are its row weights less ours.

        The centre of the prior is drawn too, else a class of one label, which no resampling varies, would look certain.
        """
        scale, bias = self.best
        precision = _prior_precision(len(bias))
        of_prior = np.sqrt(precision) * rng.standard_normal(len(precision))
        step = np.linalg.solve(self.hessian, extra_weights @ self.row_scores + of_prior)
        return Calibration(max(0.0, float(scale - step[0])), bias - step[1:])


def fit_calibration(logs: Floats, y: Integers, weights: Floats) -> CalibrationFit:
    """The posterior mode, by Newton's method with step halving; the loss is convex.

    `logs` are those of out-of-fold predictions, smoothed. The mode is near the identity when labels are few.
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
    logs: Floats = np.log((1 - SMOOTHING) * probs.astype(np.float64) + SMOOTHING / probs.shape[1])
    return logs


def softmax(logits: Floats) -> Floats:
    exponentials: Floats = np.exp(logits - logits.max(1, keepdims=True))
    sums: Floats = exponentials.sum(1, keepdims=True)
    return exponentials / sums
