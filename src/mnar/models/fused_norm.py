"""Residual sum, batch norm and LeakyReLU in Triton, for training on a GPU.

Memory bandwidth limits the speed of these operations, so the kernels read and write tensors as rarely as possible. A
channels-last tensor is a matrix [rows = n h w, channels] in row-major order. The forward pass and the backward pass
each go through this matrix twice:

    forward    gather_moments    reads x (and skip), writes their sum s
               normalise         reads s, writes y
    backward   gather_gradients  reads s and dy
               input_gradient    reads s and dy (and the gradient along the skip path), writes ds

A small kernel between the two combines the results of all programs of the first one. The forward pass keeps only s for
the backward pass, which computes the sign for LeakyReLU's slope from s again. The second kernel goes through the rows
backwards, because the cache still holds the last rows.

    y = leaky(z)        z = w (s - mean) rstd + b       s = x + skip
    g = dy leaky'(z)    db = sum g                      dw = sum g (s - mean) rstd
    ds = w rstd (g - db / rows - (s - mean) rstd dw / rows) + gradient along the skip path

If the input is `Rows`, mean and rstd are those of all rows. The backward pass takes the trained rows for the whole
batch (see `rows`).
"""

# mypy: allow-untyped-calls
# (Triton has no type stubs)

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from mnar.models import norm_kernels as kernels
from mnar.models.rows import in_one_block
from mnar.types import Rows, Samples

# Each thread handles sixteen elements, which are two 16-byte loads of bfloat16. The other values were chosen by
# measurements on an H200, see docs/log.md.
GATHER_TILE, GATHER_WARPS = 2048, 4
GATHER_PROGRAMS = 132 * 4  # The largest number of programs. It is small, since each program ends with a sum over rows.
APPLY_TILE, APPLY_WARPS = 4096, 8
APPLY_TILES = 4  # tiles per program


class Tiling:
    """How the matrix is divided among programs. Each program has a chunk of rows and goes through it tile by tile."""

    def __init__(self, x: Tensor) -> None:
        channels = x.shape[1]
        num_rows = x.numel() // channels
        block_channels = triton.next_power_of_2(channels)
        gather_rows = max(GATHER_TILE // block_channels, 1)
        apply_rows = max(APPLY_TILE // block_channels, 1)
        num_tiles = triton.cdiv(num_rows, gather_rows)
        gather_tiles = triton.cdiv(num_tiles, GATHER_PROGRAMS)
        num_chunks = triton.cdiv(num_tiles, gather_tiles)
        matrix = {"num_rows": num_rows, "CHANNELS": channels, "BLOCK_CHANNELS": block_channels}

        self.partial_shape = (2, channels, num_chunks)
        self.gather_grid = (num_chunks,)
        self.gather_sizes = {**matrix, "tiles": gather_tiles, "BLOCK_ROWS": gather_rows, "num_warps": GATHER_WARPS}
        self.combine_grid = (channels,)
        self.combine_sizes = {
            "num_rows": num_rows,
            "chunk_rows": gather_tiles * gather_rows,
            "num_chunks": num_chunks,
            "BLOCK_CHUNKS": triton.next_power_of_2(num_chunks),
        }
        self.apply_grid = (triton.cdiv(num_rows, APPLY_TILES * apply_rows),)
        self.apply_sizes = {**matrix, "tiles": APPLY_TILES, "BLOCK_ROWS": apply_rows, "num_warps": APPLY_WARPS}


def add_norm_leaky_relu(
    x: Samples,
    skip: Samples | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    *,
    momentum: float,
    eps: float,
    slope: float,
) -> tuple[Samples, Samples]:
    """Return the sum x + skip and the normalised and activated sum. Update the running statistics in place.

    x and skip are channels-last and have the same shape and type. All other tensors are float32, except
    num_batches_tracked. If skip is None, the sum is x. If the running statistics are None, none are updated.
    """
    norm = (weight, bias, running_mean, running_var, num_batches_tracked, momentum, eps, slope)
    if isinstance(x, Tensor):
        total, _, activated, _ = _AddNormLeakyReLU.apply(x, None, skip, None, *norm)
        return (x if skip is None else total), activated
    total, observed_total, activated, observed = _AddNormLeakyReLU.apply(*x, *(skip or (None, None)), *norm)
    return (x if skip is None else Rows(total, observed_total)), Rows(activated, observed)


class _AddNormLeakyReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        observed_x: Tensor | None,
        skip: Tensor | None,
        observed_skip: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        num_batches_tracked: Tensor | None,
        momentum: float,
        eps: float,
        slope: float,
    ) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
        num_trained = len(x)
        if observed_x is not None:
            x = in_one_block(x, observed_x)
        if observed_skip is not None:
            assert skip is not None  # both parts have a skip path, or none of them
            skip = in_one_block(skip, observed_skip)
        tiling = Tiling(x)
        partial = weight.new_empty(tiling.partial_shape)
        mean, rstd = torch.empty_like(weight), torch.empty_like(weight)
        total = x if skip is None else torch.empty_like(x)
        activated = torch.empty_like(x)
        kernels.gather_moments[tiling.gather_grid](
            x, skip, total, partial, HAS_SKIP=skip is not None, **tiling.gather_sizes
        )
        kernels.combine_moments[tiling.combine_grid](
            *(partial, mean, rstd, running_mean, running_var, num_batches_tracked, momentum, eps),
            HAS_RUNNING=running_mean is not None,
            **tiling.combine_sizes,
        )
        kernels.normalise[tiling.apply_grid](total, activated, mean, rstd, weight, bias, slope, **tiling.apply_sizes)
        ctx.save_for_backward(total[:num_trained], mean, rstd, weight, bias)
        ctx.slope, ctx.has_skip = slope, skip is not None
        # The sum is often not used elsewhere. It then has no gradient, and the backward kernel need not read one.
        ctx.set_materialize_grads(False)
        if observed_x is None:
            return (None if skip is None else total), None, activated, None
        totals = (None, None) if skip is None else (total[:num_trained], total[num_trained:])
        observed = activated[num_trained:]
        ctx.mark_non_differentiable(observed, *(() if skip is None else totals[1:]))
        return *totals, activated[:num_trained], observed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_total: Tensor | None, _: None, grad_activated: Tensor | None, __: None
    ) -> tuple[Any, ...]:
        total, mean, rstd, weight, bias = ctx.saved_tensors
        if grad_activated is None:
            return grad_total, None, (grad_total if ctx.has_skip else None), *(None,) * 9
        grad_activated = grad_activated.contiguous(memory_format=torch.channels_last)
        if grad_total is not None:
            grad_total = grad_total.contiguous(memory_format=torch.channels_last)
        tiling = Tiling(total)
        partial = weight.new_empty(tiling.partial_shape)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
        grad_x = torch.empty_like(total)
        norm = (mean, rstd, weight, bias, ctx.slope)
        kernels.gather_gradients[tiling.gather_grid](total, grad_activated, partial, *norm, **tiling.gather_sizes)
        kernels.combine_gradients[tiling.combine_grid](partial, rstd, grad_weight, grad_bias, **tiling.combine_sizes)
        kernels.input_gradient[tiling.apply_grid](
            *(total, grad_activated, grad_total, grad_x, grad_weight, grad_bias, *norm),
            HAS_GRAD_TOTAL=grad_total is not None,
            **tiling.apply_sizes,
        )
        return grad_x, None, (grad_x if ctx.has_skip else None), None, grad_weight, grad_bias, *(None,) * 6
