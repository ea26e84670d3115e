"""What options of several learners have to be."""

from __future__ import annotations

import math


def check_shares(**options: float) -> None:
    """Confidences, mixing weights and the like."""
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; it lies between 0 and 1")


def check_weights(**options: float) -> None:
    for name, value in options.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}; the weight of a loss is finite and not negative (0 switches it off)")


def check_positive(**options: float) -> None:
    for name, value in options.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; it must be positive and finite")


def check_ramp(ramp: float) -> None:
    if not 0 < ramp <= 1:
        raise ValueError(f"ramp is {ramp}; a share of training lies in (0, 1], such as 0.4 (1: ramp to the end)")
