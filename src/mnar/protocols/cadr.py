"""CADR's protocol (Hu et al., "On Non-Random Missing Labels in Semi-Supervised Learning", ICLR 2022).

The labels fall exponentially from class 0 to the last class, which keeps one; the whole rest is unlabelled.

paper    here     meaning
gamma    gamma    labels of class 0, and the ratio to the last class
N_c      labeled  gamma * gamma^(-c / (k - 1))
"""

from __future__ import annotations

from mnar.protocols.long_tail import check_rounding, long_tail, round_down, round_up
from mnar.types import Counts

ROUNDINGS = {"ceil": round_up, "floor": round_down}


def cadr(num_classes: int, gamma: float, *, rounding: str = "ceil") -> Counts:
    """Labels per class; published are "ceil" for CIFAR and "floor" (but at least 1) for mini-ImageNet."""
    check_rounding(rounding, tuple(ROUNDINGS))
    sizes = long_tail(num_classes, gamma, gamma, "gamma")
    return Counts(labeled=tuple(ROUNDINGS[rounding](size) for size in sizes))
