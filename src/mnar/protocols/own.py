"""The PRG paper's own protocol: all labels and those of the largest class are given, the ratio follows.

paper      here        meaning
n_L        num_labels  labels in all
N_1        n1          labels of class 0
gamma      (solved)    such that the N_c add up to n_L
N_c        labeled     N_1 * gamma^(-c / (k - 1))
gamma_u    gamma_u     ratio of the unlabelled part, which is drawn in inverse order
M_c        unlabeled   M_1 * gamma_u^(-(k - 1 - c) / (k - 1)), drawn besides the labelled ones
"""

from __future__ import annotations

from bisect import bisect_left

from mnar.protocols.long_tail import (
    check_num_labels,
    check_positive,
    check_rounding,
    inverse_tail,
    round_down,
)
from mnar.types import Counts

LARGEST_GAMMA = 99_999  # where the published search ends


def official(num_classes: int, num_labels: int, n1: int) -> list[int]:
    """The published code: a whole gamma, the exponent c / k, single labels added or removed at the end."""

    def profile(gamma: int) -> list[int]:
        return [round_down(n1 * gamma ** (-c / num_classes)) for c in range(num_classes)]

    def total(gamma: int) -> int:
        return sum(profile(gamma))

    gammas = range(1, LARGEST_GAMMA + 1)
    first = bisect_left(gammas, -num_labels, key=lambda gamma: -total(gamma))  # the total falls as gamma grows
    around = gammas[max(first - 1, 0) : first + 1]
    labeled = profile(min(around, key=lambda gamma: abs(total(gamma) - num_labels)))

    adjustable = range(1, num_classes - 2)  # the first class and the last two stay as they are
    surplus = sum(labeled) - num_labels
    while surplus > 0 and any(labeled[c] > 1 for c in adjustable):
        for c in adjustable:
            if surplus > 0 and labeled[c] > 1:
                labeled[c] -= 1
                surplus -= 1
    for c in adjustable:
        if surplus < 0:
            labeled[c] += 1
            surplus += 1
    if surplus:
        raise ValueError(
            f"the published rounding gives {sum(labeled)} labels where num_labels is {num_labels} "
            f"({num_classes} classes, n1={n1}); use rounding='exact'"
        )
    return labeled


def exact(num_classes: int, num_labels: int, n1: int) -> list[int]:
    """The paper's formula: a real gamma, no class below 1, and the largest remainders rounded up."""

    def profile(step: float) -> list[float]:
        return [max(1.0, n1 * step**c) for c in range(num_classes)]

    # step = gamma^(-1 / (k - 1)), from one class to the next; at 1 / n1 all classes but the first have come down to 1
    low, high = 1 / n1, 1.0
    for _ in range(60):  # halvings: as many as a float has digits
        step = (low + high) / 2
        low, high = (step, high) if sum(profile(step)) < num_labels else (low, step)

    sizes = profile(high)
    labeled = [round_down(size) for size in sizes]
    by_remainder = sorted(range(num_classes), key=lambda c: labeled[c] - sizes[c])
    for c in by_remainder[: num_labels - sum(labeled)]:
        labeled[c] += 1
    return labeled


ROUNDINGS = {"official": official, "exact": exact}


def own(
    num_classes: int,
    num_labels: int,
    n1: int,
    *,
    gamma_u: float | None = None,
    m1: int = 5000,
    rounding: str = "official",
) -> Counts:
    """Counts per class: "official" gives the published code's, "exact" those of the paper's formula."""
    check_rounding(rounding, tuple(ROUNDINGS))
    check_num_labels(num_classes, num_labels)
    check_positive(n1, "n1")
    fewest, most = n1 + num_classes - 1, n1 * num_classes
    if not fewest <= num_labels <= most:
        raise ValueError(
            f"num_labels is {num_labels}, but {num_classes} classes with n1={n1} labels in the first "
            f"and 1 to {n1} in each other hold {fewest} to {most}; change num_labels or n1"
        )
    labeled = ROUNDINGS[rounding](num_classes, num_labels, n1)
    return Counts(tuple(labeled), inverse_tail(num_classes, gamma_u, m1))
