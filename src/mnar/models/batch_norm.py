"""Batch norm followed by LeakyReLU, optionally after the sum with a skip path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.models.fusing import triton_can_take
from mnar.models.rows import added, each, normalised
from mnar.types import Rows, Samples


class BatchNormLeakyReLU(nn.BatchNorm2d):
    """Batch norm and LeakyReLU in one module.

    In training on a GPU the module uses Triton kernels, which read and write memory less often. Elsewhere it uses plain
    PyTorch operations. Set `fused` to False to use plain operations everywhere. Under `torch.compile` the module always
    uses plain operations, which `torch.compile` then fuses itself.

    channels  number of channels
    slope     slope of LeakyReLU for negative values
    momentum  weight of the current batch in the running statistics
    eps       value that is added to the variance, so that its root is never 0
    """

    takes_rows = True
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, channels: int, *, slope: float, momentum: float, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.slope = slope
        self.fused = True

    def forward(self, x: Samples) -> Samples:  # type: ignore[override]
        if self._can_fuse(x):
            return self._add_fused(x, None)[1]
        if isinstance(x, Rows):
            return each(lambda part: F.leaky_relu(part, self.slope), normalised(self, x))
        return F.leaky_relu(super().forward(x), self.slope)

    def add(self, x: Samples, skip: Samples | None) -> tuple[Samples, Samples]:
        """Return the sum x + skip, which continues on the skip path, and the normalised and activated sum.

        If skip is None, the sum is x.
        """
        if skip is None:
            return x, self(x)
        if self._can_fuse(x) and self._can_fuse(skip) and _are_alike(x, skip):
            return self._add_fused(x, skip)
        total = added(x, skip)
        return total, self(total)

    def _can_fuse(self, x: Samples) -> bool:
        if isinstance(x, Rows):
            return (
                self._can_fuse(x.trained) and self._can_fuse(x.observed) and _are_alike(x.trained[:1], x.observed[:1])
            )
        return (
            self.fused
            and self.training
            and triton_can_take(x)
            and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
            and self.weight.dtype == torch.float32
            and x.numel() > self.num_features  # One value per channel has no variance: PyTorch raises the error.
        )

    def _add_fused(self, x: Samples, skip: Samples | None) -> tuple[Samples, Samples]:
        # This import is not at the top of the file, since only installations for a GPU have Triton.
        from mnar.models.fused_norm import add_norm_leaky_relu

        running = (self.running_mean, self.running_var, self.num_batches_tracked)
        return add_norm_leaky_relu(
            *(x, skip, self.weight, self.bias, *(running if self.track_running_stats else (None, None, None))),
            momentum=self.momentum,
            eps=self.eps,
            slope=self.slope,
        )


def _are_alike(x: Samples, y: Samples) -> bool:
    if isinstance(x, Rows) and isinstance(y, Rows):
        return _are_alike(x.trained, y.trained) and _are_alike(x.observed, y.observed)
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and x.dtype == y.dtype


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running means and variances of all batch norms of a model."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    statistics = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
    return [buffer for buffer in statistics if buffer is not None]


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch norm unchanged during forward passes in training mode.

    The norms still normalise by the statistics of the batch. They do not touch the running statistics at all, because
    an update with momentum 0 would make them NaN after an overflow and would still count the batch.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    tracking = [norm.track_running_stats for norm in norms]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm, tracks in zip(norms, tracking, strict=True):
            norm.track_running_stats = tracks
