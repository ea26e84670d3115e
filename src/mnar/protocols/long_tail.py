"""The exponential class profile that all protocols share.

paper    here         meaning
N_1      largest      size of the most frequent class
gamma    ratio        most frequent class over the rarest one
N_c      long_tail()  N_1 * gamma^(-c / (k - 1)), c = 0 ... k-1
"""

from __future__ import annotations

import math

# A power that is exactly 1 may come out as 1.0000000000000002, whose ceiling is 2;
# a count this near to a whole number is taken to be that number.
TOLERANCE = 1e-9


def round_up(count: float) -> int:
    return math.ceil(count - TOLERANCE)


def round_down(count: float) -> int:
    """Rounded down, but every class keeps one sample."""
    return max(1, math.floor(count + TOLERANCE))


def long_tail(num_classes: int, largest: float, ratio: float, ratio_name: str) -> list[float]:
    """Class sizes before rounding, the largest first; `ratio_name` is what the caller calls the ratio."""
    check_num_classes(num_classes)
    if not (math.isfinite(ratio) and ratio >= 1):
        raise ValueError(f"{ratio_name} is {ratio}; it is the largest class over the smallest, so give a number >= 1")
    return [largest * ratio ** (-c / (num_classes - 1)) for c in range(num_classes)]


def inverse_tail(num_classes: int, gamma_u: float | None, m1: int) -> tuple[int, ...] | None:
    """Unlabelled counts, inverse: the class with the most labels is the rarest. None: all that is left."""
    if gamma_u is None:
        return None
    check_positive(m1, "m1")
    return tuple(round_up(size) for size in reversed(long_tail(num_classes, m1, gamma_u, "gamma_u")))


def check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes is {num_classes}; a protocol needs 2 classes or more")


def check_num_labels(num_classes: int, num_labels: int) -> None:
    check_num_classes(num_classes)
    if num_labels < num_classes:
        raise ValueError(
            f"num_labels is {num_labels} for {num_classes} classes; "
            f"every class needs a label, so give {num_classes} or more"
        )


def check_positive(count: int, name: str) -> None:
    if count < 1:
        raise ValueError(f"{name} is {count}; it is the size of the most frequent class, so give 1 or more")


def check_rounding(rounding: str, choices: tuple[str, ...]) -> None:
    if rounding not in choices:
        raise ValueError(f"unknown rounding {rounding!r}; choose from {sorted(choices)}")
