"""Made-up half-labelled samples for tests of the portfolio."""

from __future__ import annotations

import numpy as np

from mnar.datasets.user_files import UNLABELED
from mnar.own_data.portfolio.member import Inputs, Integers, Samples


def clouds(num_labels: tuple[int, ...], num_pool: int = 60, *, distance: float = 4.0, seed: int = 0) -> Samples:
    """Return one Gaussian cloud per class, of at most six, with so many labels; the pool is divided evenly."""
    return clouds_and_truth(num_labels, num_pool, distance=distance, seed=seed)[0]


def clouds_and_truth(
    num_labels: tuple[int, ...], num_pool: int = 60, *, distance: float = 4.0, seed: int = 0
) -> tuple[Samples, Integers]:
    """Return the samples of `clouds`, and the classes of all rows."""
    rng, num_classes = np.random.default_rng(seed), len(num_labels)
    truth = np.concatenate([np.repeat(np.arange(num_classes), num_labels), np.arange(num_pool) % num_classes])
    centers = distance * np.concatenate([np.eye(3), -np.eye(3)])[:num_classes]
    features = (centers[truth] + rng.standard_normal((len(truth), 3))).astype(np.float32)
    y = truth.copy()
    y[sum(num_labels) :] = UNLABELED
    return Samples(Inputs(features), y, num_classes, seed), truth
