"""The PRG paper's own protocol. The user gives the total number of labels and that of the largest class.

The imbalance gamma follows from these two numbers.

paper      here        meaning
n_L        num_labels  total number of labels
N_1        n1          number of labels of class 0, the class with the most labels
gamma      (solved)    imbalance of the labels, chosen such that the N_c add up to n_L
N_c        labeled     labels of class c: N_1 * gamma^(-c / (k - 1))
gamma_u    gamma_u     imbalance of the unlabelled part, whose classes are in inverse order
M_c        unlabeled   unlabelled samples of class c, in addition to the labelled ones:
                       M_1 * gamma_u^(-(k - 1 - c) / (k - 1))
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated, Literal

from mnar.option_values import Imbalance, NumSamples, Range, checked_options
from mnar.protocols.long_tail import check_num_labels, inverse_tail, round_down
from mnar.types import Counts

LARGEST_GAMMA = 99_999  # The search in the published code ends here.


def official(num_classes: int, num_labels: int, n1: int) -> list[int]:
    """Return the labels per class as the published code computes them.

    The published code uses a whole number for gamma and the exponent c / k. At the end it adds or removes single labels
    until the total is right.
    """

    def profile(gamma: int) -> list[int]:
        return [round_down(n1 * gamma ** (-c / num_classes)) for c in range(num_classes)]

    def total(gamma: int) -> int:
        return sum(profile(gamma))

    gammas = range(1, LARGEST_GAMMA + 1)
    # The total falls as gamma grows, so its negative is in ascending order.
    first = bisect_left(gammas, -num_labels, key=lambda gamma: -total(gamma))
    around = gammas[max(first - 1, 0) : first + 1]
    labeled = profile(min(around, key=lambda gamma: abs(total(gamma) - num_labels)))

    adjustable = range(1, num_classes - 2)  # The first class and the last two classes do not change.
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
    """Return the labels per class by the paper's formula.

    gamma is a real number here, and no class has fewer than 1 label. The classes with the largest fractional parts are
    rounded up, until the total is right.
    """

    def profile(step: float) -> list[float]:
        return [max(1.0, n1 * step**c) for c in range(num_classes)]

    # step = gamma^(-1 / (k - 1)) is the ratio of a class to the class before. With step = 1 / n1, all classes but the
    # first have 1 label.
    low, high = 1 / n1, 1.0
    for _ in range(60):  # 60 halvings are more than the 53 binary digits of a float.
        step = (low + high) / 2
        low, high = (step, high) if sum(profile(step)) < num_labels else (low, step)

    sizes = profile(high)
    labeled = [round_down(size) for size in sizes]
    by_remainder = sorted(range(num_classes), key=lambda c: labeled[c] - sizes[c])
    for c in by_remainder[: num_labels - sum(labeled)]:
        labeled[c] += 1
    return labeled


ROUNDINGS = {"official": official, "exact": exact}


@checked_options
def own(
    num_classes: int,
    num_labels: NumSamples,
    n1: Annotated[int, Range(1, 10**7)],  # the published rounding takes seconds for larger classes
    *,
    gamma_u: Imbalance | None = None,
    m1: NumSamples = 5000,
    rounding: Literal["official", "exact"] = "official",
) -> Counts:
    """Return the labelled and unlabelled counts per class.

    num_labels  total number of labels
    n1          number of labels of class 0, the class with the most labels
    gamma_u     imbalance of the unlabelled part, in inverse order; None: all samples that have no label are unlabelled
                data
    m1          size of the largest unlabelled class, used with gamma_u
    rounding    "official" gives the counts of the published code, "exact" the counts of the paper's formula
    """
    check_num_labels(num_classes, num_labels)
    fewest, most = n1 + num_classes - 1, n1 * num_classes
    if not fewest <= num_labels <= most:
        raise ValueError(
            f"num_labels is {num_labels}, but {num_classes} classes with n1={n1} labels in the first class "
            f"and 1 to {n1} labels in each other class hold {fewest} to {most}; change num_labels or n1"
        )
    labeled = ROUNDINGS[rounding](num_classes, num_labels, n1)
    return Counts(tuple(labeled), inverse_tail(num_classes, gamma_u, m1))
