"""DARP's protocol (Kim et al., "Distribution Aligning Refinery of Pseudo-label", NeurIPS 2020).

Labelled and unlabelled counts are both long-tailed, each with its own ratio, and rounded up as in PRG's code.

paper      here       meaning
N_c        labeled    N_1 * gamma_l^(-c / (k - 1))
M_c        unlabeled  M_1 * gamma_u^(-c / (k - 1)), drawn besides the labelled ones
"""

from __future__ import annotations

from mnar.protocols.long_tail import check_positive, long_tail, round_up
from mnar.types import Counts


def darp(
    num_classes: int,
    gamma_l: float,
    gamma_u: float,
    *,
    n1: int = 1500,
    m1: int = 3000,
    reverse: bool = False,
) -> Counts:
    """Counts per class; `reverse` turns the order of the unlabelled ones.

    The published reversed split has balanced labels by a typo; here they stay long-tailed, as was meant.
    """
    check_positive(n1, "n1")
    check_positive(m1, "m1")
    labeled = tuple(round_up(size) for size in long_tail(num_classes, n1, gamma_l, "gamma_l"))
    unlabeled = tuple(round_up(size) for size in long_tail(num_classes, m1, gamma_u, "gamma_u"))
    return Counts(labeled, unlabeled[::-1] if reverse else unlabeled)
