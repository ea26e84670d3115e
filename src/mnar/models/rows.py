"""Batches of which only the first rows have a gradient.

FixMatch reads the weak view of an unlabelled image only to make a pseudo-label, so no loss trains the prediction for a
weak view. In a joint forward pass, the weak views still receive a gradient: they are part of the statistics of batch
norm, which normalise the trained rows. That gradient costs almost half of the backward pass.

`Rows` leaves it out. The forward pass normalises all rows together. The backward pass of batch norm takes the trained
rows for the whole batch, with the statistics of all rows. This estimates what the observed rows would have contributed:
a trained row stands for (trained + observed) / trained rows. Without this factor, the gradient would no longer be
orthogonal to the weights before batch norm, although the loss does not depend on their scale.

    x = Rows(trained, observed)     the forward pass of a network computes all rows
    features(x)                     [trained rows, observed rows]; the observed ones have no gradient

Layers that treat each row on its own process the two parts separately (`each`). Batch norm joins them.
"""

# mypy: allow-untyped-calls
# (torch.autograd.Function.apply has no types)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mnar.types import Rows, Samples


def each(function: Callable[[Tensor], Tensor], x: Samples) -> Samples:
    """Apply a function that treats every row on its own."""
    if isinstance(x, Tensor):
        return function(x)
    with torch.no_grad():
        observed = function(x.observed)
    return Rows(function(x.trained), observed)


def through(module: nn.Module, x: Samples) -> Samples:
    """Apply a module: batch norm to all rows together, any other layer to each row on its own.

    A layer with the attribute `takes_rows` does this itself.
    """
    if isinstance(x, Tensor):
        y: Tensor = module(x)
        return y
    if isinstance(module, nn.Sequential):
        for layer in module:
            x = through(layer, x)
        return x
    if getattr(module, "takes_rows", False):
        y_rows: Rows = module(x)
        return y_rows
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return normalised(module, x)
    # The two parts may share a block of memory. A ReLU in place would then make autograd refuse the backward pass.
    return each(F.relu if isinstance(module, nn.ReLU) else module, x)


def normalised(norm: nn.modules.batchnorm._BatchNorm, x: Rows) -> Rows:
    """Apply batch norm to all rows together."""
    if not norm.training:
        y = each(lambda part: _with_running_statistics(norm, part), x)
        assert isinstance(y, Rows)
        return y
    running_mean, running_var = None, None
    if norm.track_running_stats:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        running_mean, running_var = norm.running_mean, norm.running_var
    assert norm.momentum is not None
    return Rows(*_Normalise.apply(*x, norm.weight, norm.bias, running_mean, running_var, norm.momentum, norm.eps))


def _with_running_statistics(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    """Apply batch norm as in evaluation, but without the activation that a subclass adds."""
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trained: Tensor,
        observed: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        x = torch.cat([trained, observed])
        y, mean, inverse_deviation = torch.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(trained, weight, running_mean, running_var, mean, inverse_deviation)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(observed_y := y[len(trained) :])
        return y[: len(trained)], observed_y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 8
        x, weight, *statistics = ctx.saved_tensors
        # All means in the formula of this gradient are over the rows that are given here, the trained ones.
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, *statistics, True, ctx.eps, (True, True, True)
        )
        return grad_x, None, grad_weight, grad_bias, *(None,) * 4


def relu_of_sum(x: Samples, y: Samples) -> Samples:
    """Return relu(x + y). On a GPU, the result of `Rows` is one block of memory, which the next layer need not copy."""
    is_eager = not torch.compiler.is_dynamo_compiling()  # torch.compile cannot look at addresses of memory
    if isinstance(x, Rows) and isinstance(y, Rows) and x.trained.is_cuda and is_eager:
        return Rows(*_ReLUOfSum.apply(*x, *y))
    return each(F.relu, added(x, y))


class _ReLUOfSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, observed_x: Tensor, y: Tensor, observed_y: Tensor) -> tuple[Tensor, Tensor]:
        result = (in_one_block(x, observed_x) + in_one_block(y, observed_y)).relu_()
        trained, observed = result[: len(x)], result[len(x) :]
        ctx.save_for_backward(trained)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(observed)
        return trained, observed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, None, Tensor | None, None]:
        if grad is not None:
            (result,) = ctx.saved_tensors
            grad = torch.ops.aten.threshold_backward(grad, result, 0)
        return grad, None, grad, None


def added(x: Samples, y: Samples) -> Samples:
    """Return x + y, part by part."""
    if isinstance(x, Rows) and isinstance(y, Rows):
        return Rows(x.trained + y.trained, x.observed + y.observed)
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return x + y


def joined(x: Samples) -> Tensor:
    """Return all rows as one tensor, the trained rows first."""
    return x if isinstance(x, Tensor) else torch.cat([x.trained, x.observed.detach()])


def divided(x: Tensor, num_trained: int) -> Rows:
    """Divide a batch into its first `num_trained` rows and the others, which lose their gradient."""
    return Rows(x[:num_trained], x[num_trained:].detach())


def in_one_block(trained: Tensor, observed: Tensor) -> Tensor:
    """Return all rows as one tensor without a gradient. Parts that are neighbours in memory are not copied.

    The kernels for a GPU read and write all rows at once. Their results are divided into two parts of one block of
    memory, which the next layer finds here again.
    """
    rows = (len(trained) + len(observed), *trained.shape[1:])
    end = trained.storage_offset() + trained.numel()
    is_one_block = (
        trained.untyped_storage().data_ptr() == observed.untyped_storage().data_ptr()
        and observed.storage_offset() == end
        and observed.stride() == trained.stride()
        and trained.dtype == observed.dtype
    )
    if is_one_block:
        return trained.detach().as_strided(rows, trained.stride())
    return torch.cat([trained.detach(), observed])
