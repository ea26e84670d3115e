"""3x3 convolutions with few channels in Triton, for training on a GPU.

The kernels of cuDNN are made for many channels. With 3 to 32 channels in bfloat16 they reach a sixth to a third of the
speed that the memory bandwidth allows (docs/log.md). The first stage of a wide ResNet, which has so few channels, takes
half of the network's convolution time.

    y = patches(x) W                   W    [9 in, out]: the weight, tap by tap
    dx = patches(dy) W'                W'   [9 out, in]: taps in reverse order, input and output channels swapped
    dW = sum over pixels of patches(x)^T dy

There are two families of kernels (`conv_kernels`). The `slide` kernels are used for images whose width is a power of
two and for 16 or 32 channels on both sides. The `patch` kernels are used for all other images and for the first
convolution of a network, which has the channels of an image. Times on an H200 in µs, 32 to 32 channels, 32x32 pixels:

                                  patch   slide   cuDNN
    convolution      960 images      92      64      96
    input gradient   512 images      56      40      56
    weight gradient  512 images      53      45     113
"""

# mypy: allow-untyped-calls
# (Triton has no type stubs)

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from mnar.models import conv_kernels as kernels


class PatchSizes(NamedTuple):
    """The amount of work that one program of the `patch` kernels does at a time.

    pixels     pixels per block
    patch      columns of the patches per block
    num_warps  warps per program
    stages     depth of the software pipeline
    """

    pixels: int
    patch: int
    num_warps: int
    stages: int


class SlideSizes(NamedTuple):
    """The amount of work that one program of the `slide` kernels does at a time.

    images     images of which a program handles one row at a time
    num_warps  warps per program
    stages     depth of the software pipeline
    """

    images: int
    num_warps: int
    stages: int


# All sizes were chosen by measurements on an H200, which has 132 multiprocessors (benchmarks/conv_time.py).
PATCH_CONVOLVE = PatchSizes(pixels=128, patch=32, num_warps=4, stages=4)
PATCH_WEIGHT_GRADIENT = PatchSizes(pixels=64, patch=64, num_warps=4, stages=4)
# The number of programs, by the number of input channels.
PATCH_WEIGHT_GRADIENT_PROGRAMS = {3: 132 * 4, 16: 132 * 2, 32: 132}

SLIDE_CONVOLVE_SMALL = SlideSizes(images=2, num_warps=4, stages=3)
SLIDE_CONVOLVE_LARGE = SlideSizes(images=4, num_warps=8, stages=3)
# Three programs with two images fit on a multiprocessor. With more images than this, some programs would have to wait.
SMALL_BATCH = 2 * 3 * 132
SLIDE_WEIGHT_GRADIENT = SlideSizes(images=4, num_warps=4, stages=3)
SLIDE_WEIGHT_GRADIENT_PROGRAMS = 132


class TritonConvolution:
    """The convolution of channels-last images with a weight [out, in, 3, 3] of the same type, and its gradients."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous(memory_format=torch.channels_last)

    def convolve(self, x: Tensor) -> Tensor:
        return (slide_convolve if self._slides(x) else patch_convolve)(x, self.weight, transposed=False)

    def input_gradient(self, x: Tensor, grad_y: Tensor) -> Tensor:
        return (slide_convolve if self._slides(x) else patch_convolve)(grad_y, self.weight, transposed=True)

    def weight_gradient(self, x: Tensor, grad_y: Tensor) -> Tensor:
        return (slide_weight_gradient if self._slides(x) else patch_weight_gradient)(x, grad_y)

    def _slides(self, x: Tensor) -> bool:
        """Whether the `slide` kernels can take x: its width and all numbers of channels have to be powers of two."""
        width, (num_out, num_in) = x.shape[3], self.weight.shape[:2]
        powers = all(n & (n - 1) == 0 for n in (width, num_in, num_out))
        return powers and width >= 8 and min(num_in, num_out) >= 16


def patch_convolve(x: Tensor, weight: Tensor, *, transposed: bool, sizes: PatchSizes = PATCH_CONVOLVE) -> Tensor:
    """Return the convolution of x, or the gradient of the input if x is that of the output and `transposed` is set."""
    y = _empty_output(x, weight, transposed)
    num_pixels = y[:, 0].numel()
    kernels.patch_convolve[(triton.cdiv(num_pixels, sizes.pixels),)](
        *(x, weight, y, num_pixels),
        **_shape(x, y.shape[1]),
        **_patch_options(x, sizes),
        TRANSPOSED=transposed,
    )
    return y


def patch_weight_gradient(x: Tensor, grad_y: Tensor, *, sizes: PatchSizes = PATCH_WEIGHT_GRADIENT) -> Tensor:
    """Return the gradient of the weight in float32, [out, in, 3, 3], channels-last like the weight.

    The partial sums of the programs are added in a fixed order, so the result is repeatable.
    """
    num_in, num_out = x.shape[1], grad_y.shape[1]
    num_pixels = grad_y[:, 0].numel()
    tiles = triton.cdiv(num_pixels, PATCH_WEIGHT_GRADIENT_PROGRAMS.get(num_in, 132) * sizes.pixels)
    num_programs = triton.cdiv(num_pixels, tiles * sizes.pixels)
    partial = x.new_empty((num_programs, num_out, 3, 3, num_in), dtype=torch.float32)
    kernels.patch_weight_gradient[(num_programs,)](
        *(x, grad_y, partial, num_pixels, tiles),
        **_shape(x, num_out),
        **_patch_options(x, sizes),
    )
    return partial.sum(0).permute(0, 3, 1, 2)


def slide_convolve(x: Tensor, weight: Tensor, *, transposed: bool, sizes: SlideSizes | None = None) -> Tensor:
    """Return what `patch_convolve` returns."""
    if sizes is None:
        sizes = SLIDE_CONVOLVE_SMALL if len(x) <= SMALL_BATCH else SLIDE_CONVOLVE_LARGE
    y = _empty_output(x, weight, transposed)
    kernels.slide_convolve[(triton.cdiv(len(x), sizes.images),)](
        *(x, weight, y, len(x)),
        **_shape(x, y.shape[1]),
        **_slide_options(sizes),
        TRANSPOSED=transposed,
    )
    return y


def slide_weight_gradient(
    x: Tensor,
    grad_y: Tensor,
    *,
    sizes: SlideSizes = SLIDE_WEIGHT_GRADIENT,
    most_programs: int = SLIDE_WEIGHT_GRADIENT_PROGRAMS,
) -> Tensor:
    """Return what `patch_weight_gradient` returns."""
    num_images, num_out, height, _ = grad_y.shape
    num_tiles = triton.cdiv(num_images, sizes.images) * height
    tiles = triton.cdiv(num_tiles, most_programs)
    num_programs = triton.cdiv(num_tiles, tiles)
    partial = x.new_empty((num_programs * 2, num_out, 3, 3, x.shape[1]), dtype=torch.float32)
    kernels.slide_weight_gradient[(num_programs,)](
        *(x, grad_y, partial, num_images, tiles),
        **_shape(x, num_out),
        **_slide_options(sizes),
    )
    return partial.sum(0).permute(0, 3, 1, 2)


def _empty_output(x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    num_images, _, height, width = x.shape
    shape = (num_images, weight.shape[1 if transposed else 0], height, width)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _shape(x: Tensor, num_out: int) -> dict[str, int]:
    _, num_in, height, width = x.shape
    return {"HEIGHT": height, "WIDTH": width, "IN": num_in, "OUT": num_out}


def _patch_options(x: Tensor, sizes: PatchSizes) -> dict[str, int]:
    block_patch = min(sizes.patch, triton.next_power_of_2(9 * x.shape[1]))
    options = {"BLOCK_PIXELS": sizes.pixels, "BLOCK_PATCH": block_patch, "STAGES": sizes.stages}
    return options | {"num_warps": sizes.num_warps}


def _slide_options(sizes: SlideSizes) -> dict[str, int]:
    return {"IMAGES": sizes.images, "STAGES": sizes.stages, "num_warps": sizes.num_warps}
