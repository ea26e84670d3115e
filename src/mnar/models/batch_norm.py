"""Batch norm followed by LeakyReLU, after a residual sum where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.models.fusing import triton_can_take


class BatchNormLeakyReLU(nn.BatchNorm2d):
    """Plain PyTorch operations; in training on a GPU, Triton kernels that read and write memory less often.

    Set `fused` to False for plain operations everywhere. `torch.compile` sees only those, and fuses them.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, channels: int, *, slope: float, momentum: float, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.slope = slope
        self.fused = True

    def forward(self, x: Tensor) -> Tensor:
        if self._can_fuse(x):
            return self._add_fused(x, None)[1]
        return F.leaky_relu(super().forward(x), self.slope)

    def add(self, x: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum, which goes on along the skip path, and the activated norm of it; no skip adds nothing."""
        if skip is None:
            return x, self(x)
        if self._can_fuse(x) and self._can_fuse(skip) and x.shape == skip.shape and x.dtype == skip.dtype:
            return self._add_fused(x, skip)
        total = x + skip
        return total, self(total)

    def _can_fuse(self, x: Tensor) -> bool:
        return (
            self.fused
            and self.training
            and triton_can_take(x)
            and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
            and self.weight.dtype == torch.float32
            and x.numel() > self.num_features  # one value per channel has no variance: PyTorch says so
        )

    def _add_fused(self, x: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
        from mnar.models.fused_norm import add_norm_leaky_relu  # not above: only GPU installs have Triton

        return add_norm_leaky_relu(
            *(x, skip, self.weight, self.bias, self.running_mean, self.running_var, self.num_batches_tracked),
            momentum=self.momentum,
            eps=self.eps,
            slope=self.slope,
        )


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Forwards in training mode that leave the running statistics as they are."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
