"""The Triton kernels of fused_conv: 3x3 convolutions with stride 1 and padding 1 on channels-last images.

The kernels treat a batch of images as a matrix [pixels = n h w, channels]. The patch of a pixel is one row with the
channels of its 3x3 neighbourhood (nine pixels), with zeros outside the image. A convolution is the product of the
patches [pixels, 9 IN] and a weight matrix [9 IN, OUT]. The patches are never written to memory.

patch_convolve, patch_weight_gradient   take images of any size. They read a block of patches as nine overlapping
                                        blocks of pixels, most of which the cache serves.
slide_convolve, slide_weight_gradient   take images whose width is a power of two. They go from one row of the images to
                                        the next and read each value two or three times, instead of nine times.

The weight of a convolution is [out, in, 3, 3] and channels-last, i.e. [out, 9 taps, in] in memory. The gradient of the
input is a convolution of the output's gradient: with TRANSPOSED, the kernels take the taps of the weight in reverse
order and swap its input and output channels.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# (Triton has no type stubs, and a kernel's pointer arguments have no Python type)

from __future__ import annotations

import triton
import triton.language as tl

READ_SOON = tl.constexpr("evict_last")  # the next layer reads the result, which should stay in the cache until then


@triton.jit
def patch_convolve(
    x,
    weight,
    y,
    num_pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_PATCH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute y = patches(x) weight for a block of pixels."""
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    channel_out = tl.arange(0, OUT)[None, :]
    total = tl.zeros((BLOCK_PIXELS, OUT), tl.float32)
    for start in tl.range(0, 9 * IN, BLOCK_PATCH, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK_PATCH)
        tap, channel_in = (column // IN)[:, None], (column % IN)[:, None]
        where = _entry(tap, channel_in, channel_out, IN, OUT, TRANSPOSED)
        rows = tl.load(weight + where, (column < 9 * IN)[:, None], 0.0)
        total = tl.dot(_patches(x, pixel, column, num_pixels, HEIGHT, WIDTH, IN), rows, total)
    where = y + pixel[:, None] * OUT + channel_out
    tl.store(where, total.to(y.dtype.element_ty), (pixel < num_pixels)[:, None])


@triton.jit
def patch_weight_gradient(
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
def slide_convolve(
    x,
    weight,
    y,
    num_images,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    IMAGES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute y = patches(x) weight for IMAGES images, one row of all these images at a time.

    A row of x is the lower neighbour of one row of y, the middle of the next and the upper neighbour of the one after.
    So a program reads each row three times, once for each horizontal tap, and adds its part to the sums of three rows
    of y. The first of these sums is then complete, and the program stores it.
    """
    index = tl.arange(0, IMAGES * WIDTH)
    image = tl.program_id(0) * IMAGES + index // WIDTH
    across = index % WIDTH
    exists = image < num_images
    top = image * (HEIGHT * WIDTH) + across  # the pixel in row 0 of the image

    # The weights stay in shared memory: w<vertical tap><horizontal tap>.
    w00 = _tap(weight, 0, IN, OUT, TRANSPOSED)
    w01 = _tap(weight, 1, IN, OUT, TRANSPOSED)
    w02 = _tap(weight, 2, IN, OUT, TRANSPOSED)
    w10 = _tap(weight, 3, IN, OUT, TRANSPOSED)
    w11 = _tap(weight, 4, IN, OUT, TRANSPOSED)
    w12 = _tap(weight, 5, IN, OUT, TRANSPOSED)
    w20 = _tap(weight, 6, IN, OUT, TRANSPOSED)
    w21 = _tap(weight, 7, IN, OUT, TRANSPOSED)
    w22 = _tap(weight, 8, IN, OUT, TRANSPOSED)

    upper = tl.zeros((IMAGES * WIDTH, OUT), tl.float32)
    middle = tl.zeros((IMAGES * WIDTH, OUT), tl.float32)
    for row in tl.range(0, HEIGHT + 1, num_stages=STAGES):
        part = _row(x, top, across, exists, row, -1, HEIGHT, WIDTH, IN)
        upper = tl.dot(part, w20, upper)
        middle = tl.dot(part, w10, middle)
        lower = tl.dot(part, w00)
        part = _row(x, top, across, exists, row, 0, HEIGHT, WIDTH, IN)
        upper = tl.dot(part, w21, upper)
        middle = tl.dot(part, w11, middle)
        lower = tl.dot(part, w01, lower)
        part = _row(x, top, across, exists, row, 1, HEIGHT, WIDTH, IN)
        upper = tl.dot(part, w22, upper)
        middle = tl.dot(part, w12, middle)
        lower = tl.dot(part, w02, lower)
        # The sums trade places, so their products have to be complete. Without a use other than the next product, the
        # compiler would not wait for them here, and would then let each instruction wait for the one before.
        value = (upper + 0.0).to(y.dtype.element_ty)
        upper, middle = middle + 0.0, lower + 0.0
        where = ((top + (row - 1) * WIDTH) * OUT)[:, None] + tl.arange(0, OUT)[None, :]
        tl.store(y + where, value, (exists & (row > 0))[:, None], eviction_policy=READ_SOON)


@triton.jit
def slide_weight_gradient(
    x,
    grad_y,
    partial,
    num_images,
    tiles,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    IMAGES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute partial[program, member] = grad_y^T patches(x), [OUT, 9 IN], over the rows of images of this program.

    A tile is one row of IMAGES images. The kernel multiplies a row of x with the three rows of grad_y to which it
    contributes. A row of the matrices is a pair of neighbouring pixels of grad_y, with the four pixels of x to which
    the pair's horizontal taps belong. (The three pixels of a single pixel's taps would not fill a power of two.) Each
    member of the pair yields a weight gradient of its own.
    """
    index = tl.arange(0, IMAGES * WIDTH // 2)
    across = index % (WIDTH // 2) * 2
    entry = tl.arange(0, 4 * IN)
    column = tl.arange(0, 2 * OUT)
    sum0 = tl.zeros((4 * IN, 2 * OUT), tl.float32)
    sum1 = tl.zeros((4 * IN, 2 * OUT), tl.float32)
    sum2 = tl.zeros((4 * IN, 2 * OUT), tl.float32)
    first = tl.program_id(0) * tiles
    for tile in tl.range(first, first + tiles, num_stages=STAGES):
        row = tile % HEIGHT
        image = tile // HEIGHT * IMAGES + index // (WIDTH // 2)
        exists = image < num_images
        pixel = image * (HEIGHT * WIDTH) + row * WIDTH + across
        here = across[:, None] + (entry // IN - 1)[None, :]
        inside = exists[:, None] & (here >= 0) & (here < WIDTH)
        part = tl.trans(tl.load(x + (pixel * IN - IN)[:, None] + entry[None, :], inside, 0.0))
        where = grad_y + (pixel * OUT)[:, None] + column[None, :]
        below = (exists & (row < HEIGHT - 1))[:, None]
        above = (exists & (row > 0))[:, None]
        sum0 = tl.dot(part, tl.load(where + WIDTH * OUT, below, 0.0), sum0)
        sum1 = tl.dot(part, tl.load(where, exists[:, None], 0.0), sum1)
        sum2 = tl.dot(part, tl.load(where - WIDTH * OUT, above, 0.0), sum2)
    # sums[entry, column] belongs to the pixel entry // IN of x and to the member column // OUT of the pair.
    member = (column // OUT)[None, :]
    across_tap = (entry // IN)[:, None] - member
    valid = (across_tap >= 0) & (across_tap < 3)
    mine = partial + (tl.program_id(0) * 2 + member) * (9 * IN * OUT) + (column % OUT)[None, :] * (9 * IN)
    mine += across_tap * IN + (entry % IN)[:, None]
    tl.store(mine, sum0, valid)
    tl.store(mine + 3 * IN, sum1, valid)
    tl.store(mine + 6 * IN, sum2, valid)


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


@triton.jit
def _entry(tap, channel_in, channel_out, IN: tl.constexpr, OUT: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Return the position in memory of the weight by which a tap of x contributes to y."""
    if TRANSPOSED:
        return channel_in * (9 * OUT) + (8 - tap) * OUT + channel_out
    else:
        return channel_out * (9 * IN) + tap * IN + channel_in


@triton.jit
def _tap(weight, tap: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Return the weights of one tap: [IN, OUT]."""
    return tl.load(weight + _entry(tap, tl.arange(0, IN)[:, None], tl.arange(0, OUT)[None, :], IN, OUT, TRANSPOSED))


@triton.jit
def _row(
    x,
    top,
    across,
    exists,
    row,
    right: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
):
    """Return the neighbours of a row of pixels, `right` pixels to the right: [pixels, IN]."""
    inside = exists & (row < HEIGHT) & (across + right >= 0) & (across + right < WIDTH)
    where = ((top + row * WIDTH + right) * IN)[:, None] + tl.arange(0, IN)[None, :]
    return tl.load(x + where, inside[:, None], 0.0)
