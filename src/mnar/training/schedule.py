"""Learning-rate schedules: the factor of the learning rate as a function of the share of the steps that are done.

`progress` is the share of the steps before the current one: 0 in the first step, and less than 1 in the last step. The
functions need no host sync, because they only calculate with `progress`, a 0-d tensor on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def cosine(progress: Tensor) -> Tensor:
    """FixMatch's schedule: the factor of the learning rate falls from 1 to cos(7 pi / 16) = 0.195."""
    return torch.cos(progress * (7 * math.pi / 16))


def cosine_to_zero(progress: Tensor) -> Tensor:
    """Half a cosine: the factor of the learning rate is (1 + cos(pi progress)) / 2 and falls from 1 to 0.

    The code computes the same value as the square of a sine. float32 would round the sum to 0 in the last steps of a
    long training.
    """
    return torch.sin((1 - progress) * (math.pi / 2)).square()


def linear(progress: Tensor) -> Tensor:
    """The factor of the learning rate falls linearly from 1 to 0."""
    return 1 - progress


def constant(progress: Tensor) -> Tensor:
    """The factor of the learning rate stays 1."""
    return torch.ones_like(progress)


# The values of `train.schedule`.
SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine": cosine,
    "cosine_to_zero": cosine_to_zero,
    "linear": linear,
    "constant": constant,
}


def warm_up(progress: Tensor, share: float) -> Tensor:
    """The factor of the learning rate rises linearly to 1, which it reaches when `progress` is `share`."""
    return (progress / share).clamp(max=1.0)
