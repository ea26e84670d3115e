"""The exponential (long-tailed) class counts that the protocols share, and checks of their options.

paper    here         meaning
N_1      largest      size of the most frequent class
gamma    ratio        size of the most frequent class divided by that of the rarest class
N_c      long_tail()  size of class c: N_1 * gamma^(-c / (k - 1)), c = 0 ... k-1
"""

from __future__ import annotations

import math

# A power that is exactly 1 may be computed as 1.0000000000000002, and rounding up would give 2. So a count that is this
# close to a whole number counts as that number.
TOLERANCE = 1e-9


def round_up(count: float) -> int:
    """Round up, except for a count that is within TOLERANCE of a whole number."""
    return math.ceil(count - TOLERANCE)


def round_down(count: float) -> int:
    """Round down, but to at least 1, so that every class keeps one sample."""
    return max(1, math.floor(count + TOLERANCE))


def long_tail(num_classes: int, largest: float, ratio: float) -> list[float]:
    """Return the class sizes before rounding, the largest first."""
    check_num_classes(num_classes)
    return [largest * ratio ** (-c / (num_classes - 1)) for c in range(num_classes)]


def inverse_tail(num_classes: int, gamma_u: float | None, m1: int) -> tuple[int, ...] | None:
    """Return unlabelled counts in inverse order: the class with the most labels is the rarest.

    The result is None if gamma_u is None; all samples without a label are then unlabelled data.
    """
    if gamma_u is None:
        return None
    return tuple(round_up(size) for size in reversed(long_tail(num_classes, m1, gamma_u)))


def check_num_classes(num_classes: int) -> None:
    """Refuse data with fewer than 2 classes."""
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}; a protocol needs 2 classes or more")


def check_num_labels(num_classes: int, num_labels: int) -> None:
    """Refuse a total number of labels that is smaller than the number of classes."""
    check_num_classes(num_classes)
    if num_labels < num_classes:
        raise ValueError(
            f"num_labels is {num_labels} for {num_classes} classes; "
            f"every class needs a label. Give {num_classes} labels or more"
        )
