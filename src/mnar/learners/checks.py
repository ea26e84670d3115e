"""Checks of option values that several learners share."""

from __future__ import annotations

import math

from mnar.guidances.guidance import Guidance


def check_shares(**options: float) -> None:
    """Refuse an option that does not lie between 0 and 1, such as a confidence threshold or a mixing weight."""
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1. Choose a value in that range")


def check_weights(**options: float) -> None:
    """Refuse the weight of a loss if it is negative, infinite or not a number."""
    for name, value in options.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{name} is {value}; the weight of a loss must be finite and not negative. "
                "Choose 0 or more (0 switches the loss off)"
            )


def check_positive(**options: float) -> None:
    """Refuse an option that is not positive and finite, such as a temperature of 0."""
    for name, value in options.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; it must be positive and finite. Choose a number above 0")


def check_ramp(ramp: float) -> None:
    """Refuse the length of a ramp if it is not a share of the training, above 0 and at most 1."""
    if not 0 < ramp <= 1:
        raise ValueError(
            f"ramp is {ramp}; a share of training lies in (0, 1]. Choose e.g. 0.4 (1 makes the ramp last until the end)"
        )


def checked_weak_gradient(weak_gradient: bool, guidance: Guidance) -> bool:
    """Return `weak_gradient`. Refuse False if the guidance trains the weak views."""
    if not weak_gradient and guidance.trains_weak_views:
        raise ValueError(
            f"learner.weak_gradient is false, but the labelled loss of {type(guidance).__name__} trains the weak "
            "views; choose --set learner.weak_gradient=true"
        )
    return weak_gradient
