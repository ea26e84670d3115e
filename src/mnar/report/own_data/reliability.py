"""How often a prediction of some confidence is right."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.report.own_data.content import Interval, Reliability

Floats = npt.NDArray[np.float64]

NUM_BINS = 10
MIN_IN_BIN = 5  # predictions; the share of right ones among fewer says nothing
NUM_CONFIDENCE_BINS = 20


class ReliabilityBin(NamedTuple):
    """The predictions whose confidence lies in one tenth of the scale."""

    confidence: float  # their mean confidence
    is_right: Interval  # the share of them that is right
    weight: float  # of all predictions


def binned(reliability: Reliability) -> list[ReliabilityBin]:
    """Return the bins that have enough predictions, the smallest confidence first."""
    confidence = np.asarray(reliability.confidence, float)
    is_correct = np.asarray(reliability.is_correct, float)
    weight = np.ones_like(confidence) if reliability.weight is None else np.asarray(reliability.weight, float)
    number = (confidence * NUM_BINS).astype(int).clip(0, NUM_BINS - 1)
    bins = []
    for each in range(NUM_BINS):
        inside = number == each
        total = weight[inside].sum()
        if inside.sum() < MIN_IN_BIN or total <= 0:
            continue
        right = float((weight * is_correct)[inside].sum() / total)
        effective_size = total**2 / (weight[inside] ** 2).sum()
        low, high = wilson_interval(right, effective_size)
        interval = Interval(right, float(low), float(high))
        bins.append(ReliabilityBin(float((weight * confidence)[inside].sum() / total), interval, total / weight.sum()))
    return bins


def wilson_interval(shares: npt.ArrayLike, counts: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the 95 % interval of shares that `counts` samples were observed for (Wilson's score interval).

    A share without samples, NaN, has an interval of NaN.
    """
    share, count = np.asarray(shares, float), np.asarray(counts, float)
    z = NormalDist().inv_cdf(0.975)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
        reach = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return np.clip(middle - reach, 0, 1), np.clip(middle + reach, 0, 1)


def confidence_shares(confidences: npt.ArrayLike) -> list[float]:
    """Return the share of the confidences in each of the bins of a histogram from 0 to 1."""
    values = np.asarray(confidences, float).clip(0, 1)
    counts = np.histogram(values, np.linspace(0, 1, NUM_CONFIDENCE_BINS + 1))[0]
    return [float(count) / max(1, len(values)) for count in counts]
