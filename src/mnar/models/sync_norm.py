"""Batch norm with the statistics of the batches of all processes (`train.sync_batch_norm`).

Without it, each process normalises its part of a batch with the statistics of that part. `torch.nn.SyncBatchNorm` works
on GPUs only and knows no `Rows`.

    y = w (x - mean) rstd + b                           mean, rstd: over all rows of all processes
    dx = w rstd (g - mean(g) - x^ mean(g x^))           g = dy, x^ = (x - mean) rstd; means over all processes
"""

# mypy: allow-untyped-calls
# (torch.autograd.Function.apply has no types)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mnar import distributed
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.rows import normalised
from mnar.types import Rows, Samples


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm that uses the statistics of all processes in training."""

    takes_rows = True

    def forward(self, x: Samples) -> Samples:  # type: ignore[override]
        if not self.training:
            return normalised(self, x) if isinstance(x, Rows) else super().forward(x)
        return normalised_together(self, x)

    def _check_input_dim(self, input: Tensor) -> None: ...


class SynchronisedBatchNormLeakyReLU(BatchNormLeakyReLU):
    """Batch norm and LeakyReLU, with the statistics of all processes and without our Triton kernels."""

    def forward(self, x: Samples) -> Samples:  # type: ignore[override]
        if not self.training:
            return super().forward(x)
        y = normalised_together(self, x)
        if isinstance(y, Rows):
            return Rows(*(nn.functional.leaky_relu(part, self.slope) for part in y))
        return nn.functional.leaky_relu(y, self.slope)

    def _can_fuse(self, x: Samples) -> bool:
        return False


def synchronise(model: nn.Module) -> None:
    """Let all batch norms of a model use the statistics of all processes. Parameters and buffers stay the same."""
    for module in model.modules():
        if isinstance(module, BatchNormLeakyReLU):
            module.__class__ = SynchronisedBatchNormLeakyReLU
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.__class__ = SynchronisedBatchNorm


def normalised_together(norm: nn.modules.batchnorm._BatchNorm, x: Samples) -> Samples:
    """Apply batch norm in training to the rows of all processes. The processes have equally many rows."""
    running_mean, running_var = None, None
    if norm.track_running_stats:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        running_mean, running_var = norm.running_mean, norm.running_var
    parts, weight, bias = x if isinstance(x, Rows) else (x, None), norm.weight, norm.bias
    if weight is None or bias is None:  # affine=False
        weight, bias = parts[0].new_ones(norm.num_features), parts[0].new_zeros(norm.num_features)
    trained, observed = _NormaliseTogether.apply(
        *parts, weight, bias, running_mean, running_var, norm.momentum, norm.eps
    )
    return Rows(trained, observed) if isinstance(x, Rows) else trained


class _NormaliseTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trained: Tensor,
        observed: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor | None]:
        x = (trained if observed is None else torch.cat([trained, observed])).to(weight.dtype)
        dims = [dim for dim in range(x.ndim) if dim != 1]
        of_processes = distributed.gather(torch.stack(torch.var_mean(x, dims, correction=0)).unsqueeze(0))
        variances, means = of_processes.unbind(1)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        rstd = (var + eps).rsqrt()
        if running_mean is not None and running_var is not None:
            count = distributed.world_size() * x.numel() // x.shape[1]
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (count / max(count - 1, 1))).to(running_var.dtype), momentum)
        shape = [1, -1, *[1] * (x.ndim - 2)]
        y = ((x - mean.view(shape)) * (rstd * weight).view(shape) + bias.view(shape)).to(trained.dtype)
        ctx.save_for_backward(trained, weight, mean, rstd)
        ctx.set_materialize_grads(False)
        if observed is None:
            return y, None
        ctx.mark_non_differentiable(observed_y := y[len(trained) :])
        return y[: len(trained)], observed_y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Any, ...]:
        trained, weight, mean, rstd = ctx.saved_tensors
        if grad is None:  # of no process: they have the same losses
            return (None,) * 8
        dims = [dim for dim in range(trained.ndim) if dim != 1]
        shape = [1, -1, *[1] * (trained.ndim - 2)]
        g = grad.to(weight.dtype)
        normal = (trained.to(weight.dtype) - mean.view(shape)) * rstd.view(shape)
        grad_bias, grad_weight = g.sum(dims), (g * normal).sum(dims)  # the trainer averages them over the processes
        mean_g, mean_gx = distributed.mean(torch.stack([grad_bias, grad_weight])) * (len(weight) / trained.numel())
        grad_x = (weight * rstd).view(shape) * (g - mean_g.view(shape) - normal * mean_gx.view(shape))
        return grad_x.to(trained.dtype), None, grad_weight, grad_bias, *(None,) * 4
