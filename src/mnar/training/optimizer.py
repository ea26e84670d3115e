"""The optimisers with their parameter groups, the learning-rate schedule, and the moving average of the weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from mnar.models import Classifier

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def make_optimizer(
    kind: str, model: nn.Module, *, lr: Tensor, momentum: float, weight_decay: float, capturable: bool = False
) -> torch.optim.Optimizer:
    """Make Nesterov SGD, Adam or RMSprop. Normalisation layers have no weight decay, as in the published recipe.

    lr            a tensor on the device that the schedule changes in place, so that a CUDA graph sees the change
    capturable    whether the optimiser will be part of a CUDA graph
    """
    of_norms = {p for module in model.modules() if isinstance(module, NORMS) for p in module.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p not in of_norms], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p in of_norms], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=True)
    if kind == "adam":
        return torch.optim.Adam(groups, lr=lr, fused=True, capturable=capturable)
    if kind == "rmsprop":  # the values of Keras, which the methods with RMSprop used
        return torch.optim.RMSprop(groups, lr=lr, alpha=0.9, eps=1e-7, capturable=capturable)
    raise ValueError(f"unknown train.optimizer {kind!r}; choose sgd, adam or rmsprop")


def cosine(progress: Tensor) -> Tensor:
    """FixMatch's schedule: the factor of the learning rate falls from 1 to cos(7 pi / 16) = 0.195."""
    return torch.cos(progress * (7 * math.pi / 16))


def warm_up(progress: Tensor, share: float) -> Tensor:
    """The factor of the learning rate rises linearly to 1, which it reaches when `progress` is `share`."""
    return (progress / share).clamp(max=1.0)


class Average:
    """The exponential moving average (EMA) of a model: parameters are averaged, batch-norm statistics are copied."""

    def __init__(self, model: Classifier, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._averages: list[Tensor] = list(self.model.parameters())
        self._parameters: list[Tensor] = list(model.parameters())
        self._copies, self._buffers = list(self.model.buffers()), list(model.buffers())

    @torch.no_grad()
    def restart(self) -> None:
        """Start the average again from the current model."""
        torch._foreach_copy_(self._averages, self._parameters)
        self._copy_buffers()

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, self._parameters, 1 - self.decay)
        self._copy_buffers()

    def _copy_buffers(self) -> None:
        if self._buffers:
            torch._foreach_copy_(self._copies, self._buffers)
