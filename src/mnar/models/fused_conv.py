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

from typing import NamedTuple

import torch
import triton
from torch import Tensor

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


class SlideSizes(NamedTuple):
    """The amount of work that one program of the kernels `slide` and `slide_weight_gradient` does at a time.

    images     images per program
    group      neighbouring pixels that form one row of the matrix product: 1 or 2
    num_warps  warps per program
    stages     depth of the software pipeline
    bands      number of programs among which the rows of an image are divided (`slide` only)
    programs   number of programs (`slide_weight_gradient` only)
    """

    images: int
    group: int
    num_warps: int
    stages: int
    bands: int = 1
    programs: int = 132


SLIDE = SlideSizes(images=4, group=2, num_warps=4, stages=3)
SLIDE_INPUT_GRADIENT = SlideSizes(images=2, group=1, num_warps=4, stages=3)
SLIDE_WEIGHT_GRADIENT = SlideSizes(images=4, group=2, num_warps=4, stages=3)


class Moments(NamedTuple):
    """What the programs of `slide` found out about their values: input of combine_moments and combine_gradients.

    partial     [2, channels, chunks]
    num_rows    number of values per channel
    chunk_rows  number of values per channel and chunk; the last chunk may have fewer
    """

    partial: Tensor
    num_rows: int
    chunk_rows: int

    @property
    def combine_sizes(self) -> dict[str, int]:
        """Return the sizes that the combining kernels take as keyword arguments."""
        num_chunks = self.partial.shape[2]
        return {
            "num_rows": self.num_rows,
            "chunk_rows": self.chunk_rows,
            "num_chunks": num_chunks,
            "BLOCK_CHUNKS": triton.next_power_of_2(num_chunks),
        }


class TritonConvolution:
    """The convolution of x, which has the type `dtype`, with a float32 weight [out, in, 3, 3], and its gradients."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self.weight, self.dtype = weight, dtype

    def convolve(self, x: Tensor) -> Tensor:
        weight = self.weight.permute(2, 3, 1, 0)
        if slide_takes(x, weight.shape[3], SLIDE):
            return slide(x, weight, reverse=False, sizes=SLIDE)
        return _correlate(x, weight, reverse=False)

    def input_gradient(self, x: Tensor, grad_y: Tensor) -> Tensor:
        weight = self.weight.permute(2, 3, 0, 1)
        if slide_takes(grad_y, weight.shape[3], SLIDE_INPUT_GRADIENT):
            return slide(grad_y, weight, reverse=True, sizes=SLIDE_INPUT_GRADIENT)
        return _correlate(grad_y, weight, reverse=True)

    def weight_gradient(self, x: Tensor, grad_y: Tensor) -> Tensor:
        if slide_takes(x, grad_y.shape[1], SLIDE_WEIGHT_GRADIENT):
            return slide_weight_gradient(x, grad_y)
        return _weight_gradient(x, grad_y)


def _correlate(x: Tensor, weight: Tensor, *, reverse: bool, blocks: BlockSizes = FORWARD) -> Tensor:
    """Return patches(x) times the weight [3, 3, in, out]. `reverse` takes the taps of the weight in reverse order."""
    n, _, height, width = x.shape
    num_out = weight.shape[3]
    # One kernel casts the weight and makes it contiguous.
    weight = torch.empty(weight.shape, dtype=x.dtype, device=x.device).copy_(weight)
    y = torch.empty((n, num_out, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    num_pixels = n * height * width
    kernels.correlate[(triton.cdiv(num_pixels, blocks.pixels),)](
        *(x, weight, y, num_pixels),
        REVERSED=reverse,
        **_sizes(x, num_out, blocks),
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


def slide_takes(x: Tensor, num_out: int, sizes: SlideSizes = SLIDE) -> bool:
    """Return whether `slide` can convolve x: its channels and a row of its images fill powers of two."""
    _, num_in, height, width = x.shape
    powers = (num_in, num_out, sizes.images * width // sizes.group)
    return all(n >= 16 and n & (n - 1) == 0 for n in powers) and width % sizes.group == 0 and height % sizes.bands == 0


def slide(x: Tensor, weight: Tensor, *, reverse: bool, sizes: SlideSizes = SLIDE) -> Tensor:
    """Return patches(x) times the weight [3, 3, in, out]. `reverse` takes the taps of the weight in reverse order."""
    return _slide(x, weight, None, reverse=reverse, sizes=sizes)[0]


def slide_with_moments(
    x: Tensor, weight: Tensor, skip: Tensor | None, *, sizes: SlideSizes = SLIDE
) -> tuple[Tensor, Moments]:
    """Return s = patches(x) times the weight [3, 3, in, out] plus skip, and the moments of s for combine_moments."""
    return _slide(x, weight, skip, reverse=False, sizes=sizes, moments=True)


def slide_with_gradient_sums(
    grad_y: Tensor,
    weight: Tensor,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    slope: float,
    *,
    sizes: SlideSizes = SLIDE,
) -> tuple[Tensor, Moments]:
    """Return the gradient of the input of a convolution and its sums for combine_gradients.

    The input of the convolution is leaky(norm(total)). `weight` is [3, 3, out, in], as for `slide` with reverse=True.
    If total has more images than grad_y, the sums are those of the first images.
    """
    norm = (mean, rstd, norm_weight, norm_bias)
    return _slide(grad_y, weight, total, reverse=True, sizes=sizes, norm=norm, slope=slope)


def _slide(
    x: Tensor,
    weight: Tensor,
    other: Tensor | None,
    *,
    reverse: bool,
    sizes: SlideSizes,
    moments: bool = False,
    norm: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    slope: float = 0.0,
) -> tuple[Tensor, Moments]:
    n, num_in, height, width = x.shape
    num_out = weight.shape[3]
    images = sizes.images
    # With several bands, a last program with fewer images would not be the last chunk of the moments.
    while sizes.bands > 1 and n % images and images * width > 16 * sizes.group:
        images //= 2
    if sizes.bands > 1 and n % images:
        raise ValueError(f"The batch has {n} images, which is not a multiple of {images}. Choose bands=1.")
    weight = torch.empty(weight.shape, dtype=x.dtype, device=x.device).copy_(weight)
    y = torch.empty((n, num_out, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    num_programs = triton.cdiv(n, images) * sizes.bands
    has_partial = moments or norm is not None
    partial = x.new_empty((2, num_out, num_programs if has_partial else 0), dtype=torch.float32)
    kernels.slide[(num_programs,)](
        *(x, weight, y, other, partial, *(norm or (None,) * 4), slope, n),
        **{"HEIGHT": height, "WIDTH": width, "IN": num_in, "OUT": num_out, "REVERSED": reverse},
        **{"HAS_SKIP": other is not None and norm is None, "MOMENTS": moments, "GRADIENT_SUMS": norm is not None},
        **{"GROUP": sizes.group, "IMAGES": images, "ROWS": height // sizes.bands, "STAGES": sizes.stages},
        num_warps=sizes.num_warps,
    )
    return y, Moments(partial, n * height * width, images * height // sizes.bands * width)


def slide_weight_gradient(x: Tensor, grad_y: Tensor, *, sizes: SlideSizes = SLIDE_WEIGHT_GRADIENT) -> Tensor:
    """Return the gradient of the weight in float32, [out, in, 3, 3], like `_weight_gradient`.

    If x has more images than grad_y, the other images of x count as images without a gradient.
    """
    n, num_out, height, width = grad_y.shape
    num_in = x.shape[1]
    num_tiles = triton.cdiv(n, sizes.images) * height
    tiles = triton.cdiv(num_tiles, sizes.programs)
    num_programs = triton.cdiv(num_tiles, tiles)
    partial = x.new_empty((num_programs * sizes.group, num_out, 3, 3, num_in), dtype=torch.float32)
    kernels.slide_weight_gradient[(num_programs,)](
        *(x, grad_y, partial, n, tiles),
        **{"HEIGHT": height, "WIDTH": width, "IN": num_in, "OUT": num_out},
        **{"GROUP": sizes.group, "IMAGES": sizes.images, "STAGES": sizes.stages},
        num_warps=sizes.num_warps,
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
