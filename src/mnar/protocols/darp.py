"""DARP's protocol (Kim et al., "Distribution Aligning Refinery of Pseudo-label", NeurIPS 2020).

The labelled and the unlabelled counts are both long-tailed, each with its own ratio. The counts are rounded up, as in
PRG's code.

paper      here       meaning
N_c        labeled    labelled samples of class c: N_1 * gamma_l^(-c / (k - 1))
M_c        unlabeled  unlabelled samples of class c, in addition to the labelled ones: M_1 * gamma_u^(-c / (k - 1))
"""

from __future__ import annotations

from mnar.option_values import Imbalance, NumSamples, checked_options
from mnar.protocols.long_tail import long_tail, round_up
from mnar.types import Counts


@checked_options
def darp(
    num_classes: int,
    gamma_l: Imbalance,
    gamma_u: Imbalance,
    *,
    n1: NumSamples = 1500,
    m1: NumSamples = 3000,
    reverse: bool = False,
) -> Counts:
    """Return the labelled and unlabelled counts per class.

    gamma_l  imbalance of the labelled part: its largest class divided by its smallest class
    gamma_u  imbalance of the unlabelled part
    n1       number of labelled samples of the largest class
    m1       number of unlabelled samples of the largest class
    reverse  whether the order of the unlabelled counts is reversed, so that the class with the most labels is the
             rarest unlabelled class

    In the published code a typo makes the labels of the reversed split balanced. Here they stay long-tailed, as
    intended.
    """
    labeled = tuple(round_up(size) for size in long_tail(num_classes, n1, gamma_l))
    unlabeled = tuple(round_up(size) for size in long_tail(num_classes, m1, gamma_u))
    return Counts(labeled, unlabeled[::-1] if reverse else unlabeled)
