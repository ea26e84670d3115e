"""The ramp of a loss's weight: from nothing to all of it, linear in the share of training done."""

from __future__ import annotations

from torch import Tensor


def check_ramp(length: float) -> None:
    if not 0 < length <= 1:
        raise ValueError(f"ramp is {length}; a share of training lies in (0, 1], such as 0.4 (1: ramp to the end)")


def linear_ramp(progress: Tensor, length: float) -> Tensor:
    """w(t) = min(1, progress / length), 0-d, on the device: a python float would make a new graph at every step."""
    return (progress / length).clamp(max=1)
