"""CADR's protocol (Hu et al., "On Non-Random Missing Labels in Semi-Supervised Learning", ICLR 2022).

The number of labels falls exponentially from class 0 to the last class, which keeps one label. All other samples are
unlabelled.

paper    here     meaning
gamma    gamma    number of labels of class 0, which is also the ratio of class 0 to the last class
N_c      labeled  number of labels of class c: gamma * gamma^(-c / (k - 1))
"""

from __future__ import annotations

from typing import Literal

from mnar.option_values import Imbalance, checked_options
from mnar.protocols.long_tail import long_tail, round_down, round_up
from mnar.types import Counts

ROUNDINGS = {"ceil": round_up, "floor": round_down}


@checked_options
def cadr(num_classes: int, gamma: Imbalance, *, rounding: Literal["ceil", "floor"] = "ceil") -> Counts:
    """Return the number of labels per class.

    gamma     number of labels of class 0; the last class has 1
    rounding  "ceil" rounds up, as published for CIFAR; "floor" rounds down but keeps at least 1, as published for
              mini-ImageNet
    """
    sizes = long_tail(num_classes, gamma, gamma)
    return Counts(labeled=tuple(ROUNDINGS[rounding](size) for size in sizes))
