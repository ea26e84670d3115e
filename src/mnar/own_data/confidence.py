"""Honest confidences of a network: calibrated on held-out labels, and corrected for the class shares of the pool."""

from __future__ import annotations

import numpy as np

from mnar.own_data.inspection.calibration import fit_calibration, smoothed_log
from mnar.own_data.inspection.label_shift import pool_shares
from mnar.own_data.inspection.probe import Floats, Integers, OutOfFold
from mnar.own_data.portfolio.member import normalized


def calibrated_probs(probs_held_out: Floats, y: Integers, probs_pool: Floats, *, seed: int = 0) -> Floats:
    """Return the probabilities for the pool, [n, k].

    probs_held_out    [m, k] predictions for labelled samples that the network was not trained on
    y                 [m] their classes

    A class without held-out labels keeps the probability that the network gives it.
    """
    if len(probs_pool) == 0 or len(np.unique(y)) < 2:
        return probs_pool
    num_classes = probs_pool.shape[1]
    counts = np.bincount(y, minlength=num_classes)
    seen = counts > 0
    one_fold = OutOfFold(probs_held_out, np.zeros(len(y), np.int64), probs_pool[None].astype(np.float32))
    shares = pool_shares(one_fold, y, num_bootstrap=20, seed=seed).em.for_bayes_rule()[seen]
    codes = np.unique(y, return_inverse=True)[1]
    calibration = fit_calibration(smoothed_log(probs_held_out[:, seen]), codes, np.ones(len(y))).best
    in_pool = normalized(calibration(probs_pool[:, seen]) * shares / (counts[seen] / len(y)))
    calibrated = probs_pool.copy()
    calibrated[:, seen] = in_pool * probs_pool[:, seen].sum(1, keepdims=True)
    return calibrated
