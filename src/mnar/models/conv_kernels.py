"""The Triton kernels of fused_conv: 3x3 convolutions with stride 1 and padding 1 on channels-last images.

The kernels treat a batch of images as a matrix [pixels = n h w, channels]. The patch of a pixel is one row with the
channels of its 3x3 neighbourhood (nine pixels), with zeros outside the image. A convolution is the product of the
patches [pixels, 9 IN] and a weight matrix [9 IN, OUT]. The patches are never written to memory.

correlate, weight_gradient     take any shape and read a tile of patches as nine overlapping reads, most of which the
                               cache serves.
slide, slide_weight_gradient   take images whose rows fill a power of two. They read each value two or three times.
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
def slide(
    x,
    weight,
    y,
    skip,
    partial,
    mean,
    rstd,
    norm_weight,
    norm_bias,
    slope,
    num_images,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    REVERSED: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    MOMENTS: tl.constexpr,
    GRADIENT_SUMS: tl.constexpr,
    GROUP: tl.constexpr,
    IMAGES: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute y = patches(x) weight for ROWS rows of each of IMAGES images, one row of all these images at a time.

    A row of x is the lower neighbour of one row of y, the middle of the next and the upper neighbour of the one after.
    So a program reads each row once, adds its part to the sums of three rows of y, and stores the first of these sums,
    which is then complete. `correlate` reads each row three times as often.

    A row of the matrix product is a group of GROUP neighbouring pixels of y, which depend on GROUP + 2 pixels of x.

    GROUP = 1  Three reads of x, one for each horizontal tap.
    GROUP = 2  Two reads of x. A quarter of the products is with a weight of zero.

    HAS_SKIP       Store y + skip instead of y. The sum is rounded once.
    MOMENTS        Write mean and sum of squared deviations of the stored values to partial, as gather_moments does.
    GRADIENT_SUMS  y is the gradient of leaky(norm(skip)). Write what gather_gradients(skip, y) does to partial.
    """
    tl.static_assert(GROUP <= 2 and HEIGHT % ROWS == 0)
    tl.static_assert(not (HAS_SKIP and GRADIENT_SUMS))
    BANDS: tl.constexpr = HEIGHT // ROWS
    BLOCK: tl.constexpr = IMAGES * WIDTH // GROUP
    COLUMNS: tl.constexpr = GROUP * OUT
    first_row = tl.program_id(0) % BANDS * ROWS
    index = tl.arange(0, BLOCK)
    image = tl.program_id(0) // BANDS * IMAGES + index // (WIDTH // GROUP)
    across = index % (WIDTH // GROUP) * GROUP
    exists = image < num_images
    corner = image * (HEIGHT * WIDTH) + across  # the pixel in row 0 of the image

    # The weights stay in shared memory: w<vertical tap><read of x>.
    w00 = _taps(weight, 0, 0, REVERSED, IN, OUT, GROUP)
    w10 = _taps(weight, 1, 0, REVERSED, IN, OUT, GROUP)
    w20 = _taps(weight, 2, 0, REVERSED, IN, OUT, GROUP)
    if GROUP == 1:
        w01 = _taps(weight, 0, 1, REVERSED, IN, OUT, GROUP)
        w11 = _taps(weight, 1, 1, REVERSED, IN, OUT, GROUP)
        w21 = _taps(weight, 2, 1, REVERSED, IN, OUT, GROUP)
        w02 = _taps(weight, 0, 2, REVERSED, IN, OUT, GROUP)
        w12 = _taps(weight, 1, 2, REVERSED, IN, OUT, GROUP)
        w22 = _taps(weight, 2, 2, REVERSED, IN, OUT, GROUP)
    channel = tl.arange(0, COLUMNS) % OUT
    if GRADIENT_SUMS:
        centre = tl.load(mean + channel)[None, :]
        scale = (tl.load(norm_weight + channel) * tl.load(rstd + channel))[None, :]
        bias = tl.load(norm_bias + channel)[None, :]
    else:
        centre, scale, bias = 0.0, 0.0, 0.0
    # The product with the identity moves skip into the layout of the sums, in the same pipeline as the other products.
    identity = (tl.arange(0, COLUMNS)[:, None] == tl.arange(0, COLUMNS)[None, :]).to(x.dtype.element_ty)

    zeros = tl.zeros((BLOCK, COLUMNS), tl.float32)
    upper, middle, first, second = zeros, zeros, zeros, zeros
    # The steps are the rows of x from above the first row of y to below the last one. Row -1 is zero.
    start = first_row - 1 if BANDS > 1 else 0
    STEPS: tl.constexpr = ROWS + 2 if BANDS > 1 else HEIGHT + 1
    for step in tl.range(0, STEPS, num_stages=STAGES):
        row = start + step
        stored = exists & (row > first_row)
        where = ((corner + (row - 1) * WIDTH) * OUT)[:, None] + tl.arange(0, COLUMNS)[None, :]
        other = zeros
        if HAS_SKIP:
            upper = tl.dot(tl.load(skip + where, stored[:, None], 0.0), identity, upper)
        if GRADIENT_SUMS:
            other = tl.dot(tl.load(skip + where, stored[:, None], 0.0), identity) + 0.0
        part = _row(x, corner, across, exists, row, 0, HEIGHT, WIDTH, IN, GROUP)
        upper = tl.dot(part, w20, upper)
        middle = tl.dot(part, w10, middle)
        lower = tl.dot(part, w00)
        if GROUP == 1:
            part = _row(x, corner, across, exists, row, 1, HEIGHT, WIDTH, IN, GROUP)
            upper = tl.dot(part, w21, upper)
            middle = tl.dot(part, w11, middle)
            lower = tl.dot(part, w01, lower)
            part = _row(x, corner, across, exists, row, 2, HEIGHT, WIDTH, IN, GROUP)
            upper = tl.dot(part, w22, upper)
            middle = tl.dot(part, w12, middle)
            lower = tl.dot(part, w02, lower)
        # The sums trade places, so their products have to be complete. Without a use other than the next product, the
        # compiler would not wait for them here, and would then let each instruction wait for the one before.
        value = (upper + 0.0).to(y.dtype.element_ty)
        upper, middle = middle + 0.0, lower + 0.0
        tl.store(y + where, value, stored[:, None])
        if MOMENTS:
            first, second = _add_moments(first, second, value.to(tl.float32), row - first_row)
        if GRADIENT_SUMS:
            first, second = _add_gradients(
                *(first, second, value.to(tl.float32), other, stored, centre, scale, bias, slope)
            )

    if MOMENTS:
        _store_moments(partial, first, second, exists, ROWS, OUT, GROUP)
    if GRADIENT_SUMS:
        _store_pair(partial, _per_channel(first, OUT, GROUP), _per_channel(second, OUT, GROUP), OUT)


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
    GROUP: tl.constexpr,
    IMAGES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute partial[program, member] = grad_y^T patches(x), [OUT, 9 IN], over the rows of images of this program.

    A tile is one row of IMAGES images. The kernel multiplies a row of x with the three rows of grad_y to which it
    contributes. A row of the matrices is a group of GROUP neighbouring pixels of grad_y with the four pixels of x that
    begin left of the group. Each member of the group yields a weight gradient of its own.
    """
    tl.static_assert(GROUP <= 2)
    BLOCK: tl.constexpr = IMAGES * WIDTH // GROUP
    index = tl.arange(0, BLOCK)
    across = index % (WIDTH // GROUP) * GROUP
    entry = tl.arange(0, 4 * IN)
    column = tl.arange(0, GROUP * OUT)
    sum0 = tl.zeros((4 * IN, GROUP * OUT), tl.float32)
    sum1 = tl.zeros((4 * IN, GROUP * OUT), tl.float32)
    sum2 = tl.zeros((4 * IN, GROUP * OUT), tl.float32)
    first = tl.program_id(0) * tiles
    for tile in tl.range(first, first + tiles, num_stages=STAGES):
        row = tile % HEIGHT
        image = tile // HEIGHT * IMAGES + index // (WIDTH // GROUP)
        exists = image < num_images
        pixel = image * (HEIGHT * WIDTH) + row * WIDTH + across
        here = across[:, None] + (entry // IN - 1)[None, :]
        inside = exists[:, None] & (here >= 0) & (here < WIDTH) & (entry < (GROUP + 2) * IN)[None, :]
        part = tl.trans(tl.load(x + (pixel * IN - IN)[:, None] + entry[None, :], inside, 0.0))
        where = grad_y + (pixel * OUT)[:, None] + column[None, :]
        below = (exists & (row < HEIGHT - 1))[:, None]
        above = (exists & (row > 0))[:, None]
        sum0 = tl.dot(part, tl.load(where + WIDTH * OUT, below, 0.0), sum0)
        sum1 = tl.dot(part, tl.load(where, exists[:, None], 0.0), sum1)
        sum2 = tl.dot(part, tl.load(where - WIDTH * OUT, above, 0.0), sum2)
    # sums[entry, column] belongs to the pixel entry // IN of x and to the member column // OUT of the group.
    member = (column // OUT)[None, :]
    across_tap = (entry // IN)[:, None] - member
    valid = (across_tap >= 0) & (across_tap < 3)
    mine = partial + (tl.program_id(0) * GROUP + member) * (9 * IN * OUT) + (column % OUT)[None, :] * (9 * IN)
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
def _taps(
    weight,
    vertical: tl.constexpr,
    read: tl.constexpr,
    REVERSED: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Return the weights by which `slide` multiplies a read of x: [pixels per read * IN, GROUP * OUT]."""
    PIXELS: tl.constexpr = 1 if GROUP == 1 else 4
    entry = tl.arange(0, PIXELS * IN)[:, None]
    column = tl.arange(0, GROUP * OUT)[None, :]
    horizontal = read + entry // IN - column // OUT
    tap = 3 * vertical + horizontal
    tap = 8 - tap if REVERSED else tap
    where = weight + (tap * IN + entry % IN) * OUT + column % OUT
    return tl.load(where, (horizontal >= 0) & (horizontal < 3), 0.0)


@triton.jit
def _row(
    x,
    corner,
    across,
    exists,
    row,
    read: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    IN: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Return a read of x for `slide`: [groups, pixels per read * IN]."""
    PIXELS: tl.constexpr = 1 if GROUP == 1 else 4
    entry = tl.arange(0, PIXELS * IN)
    here = across[:, None] + (read - 1 + entry // IN)[None, :]
    inside = (exists & (row >= 0) & (row < HEIGHT))[:, None] & (here >= 0) & (here < WIDTH)
    where = ((corner + row * WIDTH + (read - 1)) * IN)[:, None] + entry[None, :]
    return tl.load(x + where, inside, 0.0)


@triton.jit
def _add_moments(mean, spread, value, count):
    """Add the count-th value to the means and the sums of squared deviations (Welford, 1962). Skip it if count < 1."""
    share = tl.where(count > 0, 1.0 / tl.maximum(count, 1).to(tl.float32), 0.0)
    deviation = value - mean
    mean += deviation * share
    spread += deviation * tl.where(count > 0, value - mean, 0.0)
    return mean, spread


@triton.jit
def _add_gradients(grad_sums, product_sums, grad, total, stored, mean, scale, bias, slope):
    """Add g and g (s - mean), where g is the gradient of the normalised s = total."""
    deviation = total - mean
    grad = tl.where(deviation * scale + bias > 0, grad, slope * grad)
    grad = tl.where(stored[:, None], grad, 0.0)
    return grad_sums + grad, product_sums + grad * deviation


@triton.jit
def _store_moments(partial, mean, spread, exists, count, OUT: tl.constexpr, GROUP: tl.constexpr):
    """Combine the moments of all pixels of the program, of which each has `count` values (Chan et al., 1979)."""
    weight = tl.where(exists, 1.0, 0.0)[:, None]
    pixels = tl.sum(weight, 0) * GROUP
    all_mean = _per_channel(weight * mean, OUT, GROUP) / pixels
    columns = tl.reshape(tl.broadcast_to(all_mean[None, :], (GROUP, OUT)), (GROUP * OUT,))
    between = mean - columns[None, :]
    all_spread = _per_channel(weight * (spread + count * between * between), OUT, GROUP)
    _store_pair(partial, all_mean, all_spread, OUT)


@triton.jit
def _per_channel(values, OUT: tl.constexpr, GROUP: tl.constexpr):
    """Return the sums of values [rows, GROUP * OUT] over the rows and the members of the group: [OUT]."""
    return tl.sum(tl.reshape(tl.sum(values, 0), (GROUP, OUT)), 0)


@triton.jit
def _store_pair(partial, first, second, OUT: tl.constexpr):
    """Store two values per channel in partial [2, channels, programs], the layout of norm_kernels."""
    mine = partial + tl.arange(0, OUT) * tl.num_programs(0) + tl.program_id(0)
    tl.store(mine, first)
    tl.store(mine + OUT * tl.num_programs(0), second)
