"""The ramp of a loss's weight: from nothing to all of it, linear in the share of training done."""

from __future__ import annotations

from torch import Tensor


def linear_ramp(progress: Tensor, length: float) -> Tensor:
    """w(t) = min(1, progress / length), 0-d, on the device: a python float would make a new graph at every step."""
    return (progress / length).clamp(max=1)
