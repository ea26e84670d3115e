"""Helpers for training in several processes. With one process, `gather` and `mean` return their input."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(local: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of their ranks, on every process.

    State that is updated from gathered rows is equal on all processes.
    """
    if world_size() == 1:
        return local
    parts = [torch.empty_like(local) for _ in range(world_size())]
    dist.all_gather(parts, local.contiguous())
    return torch.cat(parts)


def mean(local: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, on every process."""
    return local if world_size() == 1 else gather(local.unsqueeze(0)).mean(0)
