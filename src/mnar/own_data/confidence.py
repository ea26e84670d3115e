"""Honest probabilities of a network: calibrated on held-out labels, and corrected for any class mix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.calibration import Calibration, fit_calibration, smoothed_log
from mnar.own_data.inspection.label_shift import Interval, pool_shares
from mnar.own_data.inspection.probe import Floats, Integers, OutOfFold, stratified_folds
from mnar.own_data.portfolio.member import normalized

NUM_FOLDS = 5


@dataclass(frozen=True)
class NetworkCalibration:
    """Turns the softmax of a network into probabilities for data with given class shares.

    The calibration is fitted to held-out labels, so its probabilities hold for the class mix of these labels. Bayes'
    rule replaces this mix by another one. A class without held-out labels keeps the probability that the network gives.
    """

    calibration: Calibration
    seen: npt.NDArray[np.bool_]  # [k] whether the class has held-out labels
    mix: Floats  # [seen classes] class shares of the held-out labels

    @classmethod
    def fit(cls, probs: npt.NDArray[np.floating], y: Integers) -> Self | None:
        """Fit the calibration to predictions [m, k] for held-out labels; None if fewer than two classes have labels."""
        counts = np.bincount(y, minlength=probs.shape[1])
        seen = counts > 0
        if np.count_nonzero(seen) < 2:
            return None
        codes = np.unique(y, return_inverse=True)[1]
        fitted = fit_calibration(smoothed_log(probs[:, seen]), codes, np.ones(len(y))).best
        return cls(fitted, seen, counts[seen] / len(y))

    def __call__(self, probs: npt.NDArray[np.floating], shares: Floats) -> Floats:
        """Return probabilities for data with these class shares, [n, k]."""
        calibrated: Floats = probs.astype(np.float64)
        in_mix = normalized(self.calibration(probs[:, self.seen]) * shares[self.seen] / self.mix)
        calibrated[:, self.seen] = in_mix * calibrated[:, self.seen].sum(1, keepdims=True)
        return calibrated


def held_out_probabilities(probs: npt.NDArray[np.floating], y: Integers, shares: Floats) -> Floats | None:
    """Return calibrated probabilities of held-out labels for data with these class shares, [m, k].

    The calibration of each label is fitted to labels of the other folds, so the label does not confirm itself. Only if
    the other folds have labels of a single class, the calibration is fitted to all labels. The result is None if all
    labels have one class.
    """
    of_all = NetworkCalibration.fit(probs, y)
    if of_all is None:
        return None
    fold = stratified_folds(y, min(NUM_FOLDS, len(y)))
    calibrated = np.empty(probs.shape)
    for number in np.unique(fold):
        is_inside = fold == number
        of_others = NetworkCalibration.fit(probs[~is_inside], y[~is_inside])
        calibrated[is_inside] = (of_others or of_all)(probs[is_inside], shares)
    return calibrated


def estimated_pool_shares(
    probs_held_out: npt.NDArray[np.floating], y: Integers, probs_pool: npt.NDArray[np.floating], *, seed: int = 0
) -> Interval | None:
    """Estimate the class shares of the pool from the predictions of a network; None if there is nothing to estimate.

    probs_held_out    [m, k] predictions for labelled samples that the network was not trained on
    y                 [m] their classes
    """
    if len(probs_pool) == 0 or len(np.unique(y)) < 2:
        return None
    one_fold = OutOfFold(
        probs_held_out.astype(np.float64), np.zeros(len(y), np.int64), probs_pool[None].astype(np.float32)
    )
    return pool_shares(one_fold, y, num_bootstrap=100, seed=seed).em
