"""Treat numbers with which a model cannot compute: infinite ones and very large ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LARGE_NUMBER = 1e15  # beyond it, a number is rarely a measurement, and sums of squares soon overflow in float32

Numbers = npt.NDArray[np.float64]


def without_infinity(values: Numbers) -> Numbers:
    """Return the values with NaN, which means "missing", in place of infinite values."""
    is_infinite = np.isinf(values)
    return np.where(is_infinite, np.nan, values) if is_infinite.any() else values


def notes_on_numbers(values: Numbers) -> list[str]:
    """Return notes on infinite and very large values, to follow the name of the column."""
    notes = []
    num_infinite = np.count_nonzero(np.isinf(values))
    if num_infinite:
        notes.append(
            f"has {num_infinite:,} values that are infinite or too large for a number; they count as missing, so "
            "correct them if they mean something else"
        )
    largest = np.max(np.abs(values), initial=0, where=np.isfinite(values))
    if largest > LARGE_NUMBER:
        notes.append(
            f"has numbers as large as {largest:.1e}, of which the largest may hide all others; take their logarithm, "
            "or correct them if they stand for missing values"
        )
    return notes
