"""The Triton kernels of fused_conv: 3x3 convolutions with stride 1 and padding 1 on channels-last images.

The kernels treat a batch of images as a matrix [pixels = n h w, channels]. The patch of a pixel is one row with the
channels of its 3x3 neighbourhood (nine pixels), with zeros outside the image. A convolution is the product of the
patches [pixels, 9 IN] and a weight matrix [9 IN, OUT]. The patches are never written to memory: a kernel reads a tile
of patches as nine overlapping reads, most of which the cache serves.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# (Triton has no type stubs, and a kernel's pointer arguments have no Python type)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def correlate(
    x,
    weight,
    y,
    num_pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    REVERSED: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_PATCH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute y = patches(x) weight for a block of pixels. REVERSED reads the nine taps of the weight backwards."""
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    channel_out = tl.arange(0, OUT)[None, :]
    total = tl.zeros((BLOCK_PIXELS, OUT), tl.float32)
    for start in tl.range(0, 9 * IN, BLOCK_PATCH, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK_PATCH)
        row = (8 - column // IN) * IN + column % IN if REVERSED else column
        rows = tl.load(weight + row[:, None] * OUT + channel_out, (column < 9 * IN)[:, None], 0.0)
        total = tl.dot(_patches(x, pixel, column, num_pixels, HEIGHT, WIDTH, IN), rows, total)
    where = y + pixel[:, None] * OUT + channel_out
    tl.store(where, total.to(y.dtype.element_ty), (pixel < num_pixels)[:, None])


@triton.jit
def weight_gradient(
    x,
    grad_y,
    partial,
    num_pixels,
    tiles,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_PATCH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute partial[program] = grad_y^T patches(x), [OUT, 9 IN], over the pixels of this program.

    A program handles all columns of the patches, so that it reads every gradient only once. The columns are divided
    into blocks (sum0 to sum4), since the size of a Triton tensor has to be a power of two.
    """
    BLOCKS: tl.constexpr = (9 * IN + BLOCK_PATCH - 1) // BLOCK_PATCH
    tl.static_assert(BLOCKS <= 5)
    column = tl.arange(0, BLOCK_PATCH)
    channel_out = tl.arange(0, OUT)[None, :]
    sum0 = tl.zeros((BLOCK_PATCH, OUT), tl.float32)
    sum1 = tl.zeros((BLOCK_PATCH, OUT), tl.float32)
    sum2 = tl.zeros((BLOCK_PATCH, OUT), tl.float32)
    sum3 = tl.zeros((BLOCK_PATCH, OUT), tl.float32)
    sum4 = tl.zeros((BLOCK_PATCH, OUT), tl.float32)
    first = tl.program_id(0) * tiles * BLOCK_PIXELS
    for tile in tl.range(tiles, num_stages=STAGES):
        pixel = first + tile * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
        grad = tl.load(grad_y + pixel[:, None] * OUT + channel_out, (pixel < num_pixels)[:, None], 0.0)
        patches = _patches(x, pixel, column, num_pixels, HEIGHT, WIDTH, IN)
        sum0 = tl.dot(tl.trans(patches), grad, sum0)
        if BLOCKS > 1:
            patches = _patches(x, pixel, column + BLOCK_PATCH, num_pixels, HEIGHT, WIDTH, IN)
            sum1 = tl.dot(tl.trans(patches), grad, sum1)
        if BLOCKS > 2:
            patches = _patches(x, pixel, column + 2 * BLOCK_PATCH, num_pixels, HEIGHT, WIDTH, IN)
            sum2 = tl.dot(tl.trans(patches), grad, sum2)
        if BLOCKS > 3:
            patches = _patches(x, pixel, column + 3 * BLOCK_PATCH, num_pixels, HEIGHT, WIDTH, IN)
            sum3 = tl.dot(tl.trans(patches), grad, sum3)
        if BLOCKS > 4:
            patches = _patches(x, pixel, column + 4 * BLOCK_PATCH, num_pixels, HEIGHT, WIDTH, IN)
            sum4 = tl.dot(tl.trans(patches), grad, sum4)
    mine = partial + tl.program_id(0) * 9 * IN * OUT
    _store_transposed(mine, sum0, column, IN, OUT)
    if BLOCKS > 1:
        _store_transposed(mine, sum1, column + BLOCK_PATCH, IN, OUT)
    if BLOCKS > 2:
        _store_transposed(mine, sum2, column + 2 * BLOCK_PATCH, IN, OUT)
    if BLOCKS > 3:
        _store_transposed(mine, sum3, column + 3 * BLOCK_PATCH, IN, OUT)
    if BLOCKS > 4:
        _store_transposed(mine, sum4, column + 4 * BLOCK_PATCH, IN, OUT)


@triton.jit
def _patches(x, pixel, column, num_pixels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, IN: tl.constexpr):
    """Return the given columns of the patches of the given pixels: [pixels, columns]; column = tap * IN + channel."""
    tap, channel = column // IN, column % IN
    down, right = tap // 3 - 1, tap % 3 - 1
    row = (pixel // WIDTH % HEIGHT)[:, None] + down[None, :]
    across = (pixel % WIDTH)[:, None] + right[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (across >= 0) & (across < WIDTH)
    inside = inside & (pixel < num_pixels)[:, None] & (tap < 9)[None, :]
    where = pixel[:, None] * IN + ((down * WIDTH + right) * IN + channel)[None, :]
    return tl.load(x + where, inside, 0.0)


@triton.jit
def _store_transposed(matrix, rows, row, IN: tl.constexpr, OUT: tl.constexpr):
    """Store the rows `rows` [row, OUT] as columns of a matrix [OUT, 9 IN]."""
    where = matrix + tl.arange(0, OUT)[None, :] * (9 * IN) + row[:, None]
    tl.store(where, rows, (row < 9 * IN)[:, None])
