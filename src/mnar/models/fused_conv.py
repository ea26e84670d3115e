"""3x3 convolutions with few channels in Triton, for training on a GPU.

The kernels of cuDNN are made for many channels. With 3 to 32 channels in bfloat16 they reach a sixth to a third of the
speed that the memory bandwidth allows (docs/log.md). The first stage of a wide ResNet, which has so few channels, takes
half of the network's convolution time.

    y = patches(x) W                   W    [9 in, out]: the weight, tap by tap
    dx = patches(dy) W'                W'   [9 out, in]: taps in reverse order, input and output channels swapped
    dW = sum over pixels of patches(x)^T dy
"""

# mypy: allow-untyped-calls
# (Triton has no type stubs)

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from mnar.models import conv_kernels as kernels


class BlockSizes(NamedTuple):
    """The amount of work that one program does at a time. The values below were chosen by measurements on an H200.

    pixels     pixels per block
    patch      columns of the patches per block
    num_warps  warps per program
    stages     depth of the software pipeline
    """

    pixels: int
    patch: int
    num_warps: int
    stages: int


FORWARD = BlockSizes(pixels=128, patch=32, num_warps=4, stages=4)
WEIGHT_GRADIENT = BlockSizes(pixels=64, patch=64, num_warps=4, stages=4)
# The number of programs, by the number of input channels. An H200 has 132 multiprocessors.
WEIGHT_GRADIENT_PROGRAMS = {3: 132 * 4, 16: 132 * 2, 32: 132}


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve x, which is channels-last, with a float32 weight [out, in, 3, 3]. The result has the type of x."""
    y: Tensor = _Convolve.apply(x, weight)
    return y


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _correlate(x, weight.permute(2, 3, 1, 0), reverse=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        grad_y = grad_y.contiguous(memory_format=torch.channels_last)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _correlate(grad_y, weight.permute(2, 3, 0, 1), reverse=True)
        return grad_x, _weight_gradient(x, grad_y)


def _correlate(x: Tensor, weight: Tensor, *, reverse: bool) -> Tensor:
    """Return patches(x) times the weight [3, 3, in, out]. `reverse` takes the taps of the weight in reverse order."""
    n, _, height, width = x.shape
    num_out = weight.shape[3]
    # One kernel casts the weight and makes it contiguous.
    weight = torch.empty(weight.shape, dtype=x.dtype, device=x.device).copy_(weight)
    y = torch.empty((n, num_out, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    num_pixels = n * height * width
    kernels.correlate[(triton.cdiv(num_pixels, FORWARD.pixels),)](
        *(x, weight, y, num_pixels),
        REVERSED=reverse,
        **_sizes(x, num_out, FORWARD),
    )
    return y


def _weight_gradient(x: Tensor, grad_y: Tensor) -> Tensor:
    """Return the gradient of the weight in float32, [out, in, 3, 3], channels-last like the weight.

    The partial sums of the programs are added in a fixed order, so the result is repeatable.
    """
    n, num_in, height, width = x.shape
    num_out = grad_y.shape[1]
    num_pixels = n * height * width
    block = WEIGHT_GRADIENT.pixels
    tiles = triton.cdiv(num_pixels, WEIGHT_GRADIENT_PROGRAMS.get(num_in, 132) * block)
    num_programs = triton.cdiv(num_pixels, tiles * block)
    partial = x.new_empty((num_programs, num_out, 3, 3, num_in), dtype=torch.float32)
    kernels.weight_gradient[(num_programs,)](
        *(x, grad_y, partial, num_pixels, tiles),
        **_sizes(x, num_out, WEIGHT_GRADIENT),
    )
    return partial.sum(0).permute(0, 3, 1, 2)


def _sizes(x: Tensor, num_out: int, blocks: BlockSizes) -> dict[str, int]:
    """Return the compile-time constants and launch options that both kernels need."""
    _, num_in, height, width = x.shape
    return {
        "HEIGHT": height,
        "WIDTH": width,
        "IN": num_in,
        "OUT": num_out,
        "BLOCK_PIXELS": blocks.pixels,
        "BLOCK_PATCH": min(blocks.patch, triton.next_power_of_2(9 * num_in)),
        "STAGES": blocks.stages,
        "num_warps": blocks.num_warps,
    }
