"""The ramp of a loss weight: it grows linearly from 0 to the full weight with the progress of training."""

from __future__ import annotations

from torch import Tensor


def linear_ramp(progress: Tensor, length: float) -> Tensor:
    """Return w(t) = min(1, progress / length) as a 0-d tensor on the device of `progress`.

    The value stays on the device, so that one CUDA graph can serve all steps. A Python float would be a constant of the
    graph, and every step would need a graph of its own.
    """
    return (progress / length).clamp(max=1)
