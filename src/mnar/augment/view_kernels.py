"""The Triton kernel of fused_views: a whole view of one image per program, in the arithmetic of views and randaugment.

A program goes through the values of its image in tiles of TILE values. Each operation of RandAugment reads the image
from `source` and writes the result to `target`, both uint8 [channels, height, width]. The first source is the image
itself. The other sources and targets are parts of the scratch memory of the program, which is small enough to stay in
the cache. A barrier after each operation makes the result visible to all threads of the program.

All operations are of three kinds: geometric operations move pixels, color and sharpness blend each pixel with its other
channels or neighbours, and all others map grey levels to grey levels, with one table of 256 levels per channel.

The result equals that of PyTorch bit for bit only if the compiler does not fuse a product and a sum into one rounding.
So the kernel must be launched with enable_fp_fusion=False.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# (Triton has no type stubs, and a kernel's pointer arguments have no Python type)

from __future__ import annotations

import math

import triton
import triton.language as tl

from mnar.augment.randaugment import OPERATIONS

NUM_OPERATIONS = tl.constexpr(len(OPERATIONS))
IDENTITY = tl.constexpr(OPERATIONS.index("identity"))
AUTO_CONTRAST = tl.constexpr(OPERATIONS.index("auto_contrast"))
EQUALIZE = tl.constexpr(OPERATIONS.index("equalize"))
BRIGHTNESS = tl.constexpr(OPERATIONS.index("brightness"))
COLOR = tl.constexpr(OPERATIONS.index("color"))
CONTRAST = tl.constexpr(OPERATIONS.index("contrast"))
SHARPNESS = tl.constexpr(OPERATIONS.index("sharpness"))
POSTERIZE = tl.constexpr(OPERATIONS.index("posterize"))
ROTATE = tl.constexpr(OPERATIONS.index("rotate"))
SHEAR_X = tl.constexpr(OPERATIONS.index("shear_x"))
SHEAR_Y = tl.constexpr(OPERATIONS.index("shear_y"))
SOLARIZE = tl.constexpr(OPERATIONS.index("solarize"))
TRANSLATE_X = tl.constexpr(OPERATIONS.index("translate_x"))
TRANSLATE_Y = tl.constexpr(OPERATIONS.index("translate_y"))
RADIANS = tl.constexpr(math.pi / 180)


@triton.jit
def make_view(
    images,
    uniforms,
    ranges,
    mean,
    std,
    fill,
    scratch,
    views,
    STRONG: tl.constexpr,
    WEAK: tl.constexpr,
    WEAK_FIRST: tl.constexpr,
    LAYERS: tl.constexpr,
    CUTOUT: tl.constexpr,
    PADDING: tl.constexpr,
    REFLECT: tl.constexpr,
    FLIP: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the normalised view of one image to views, channels-last.

    images      uint8 [n, channels, height, width]
    uniforms    float32 [n, draws]: operations, magnitudes and cutout if STRONG, then the crop if WEAK
    ranges      float64 [operations, 2]: the setting of each operation at magnitude 0, and its growth to magnitude 1
    mean, std   float32 [channels], in grey levels
    fill        uint8 [channels], the colour of the cutout
    scratch     uint8 [n, channels * (2 * height * width + 256)] if STRONG: two images and the tables of levels
    CUTOUT      the largest side of the cutout in pixels
    """
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    VALUES: tl.constexpr = CHANNELS * PIXELS
    STRONG_DRAWS: tl.constexpr = 2 * LAYERS + 3 if STRONG else 0
    view = tl.program_id(0).to(tl.int64)
    source = images + view * VALUES
    top, left, last_row, last_column = 0, 0, -1, -1  # the square of the cutout: here it has no row
    down, right, mirrored = 0, 0, False
    if WEAK:
        draws = uniforms + view * (STRONG_DRAWS + 3)
        down, right, mirrored = _crop(draws + STRONG_DRAWS, PADDING, FLIP)
    if STRONG:
        spare = scratch + view * (2 * VALUES + 256 * CHANNELS)
        tables = spare + 2 * VALUES
        num_written = 0  # The two images of the scratch memory take turns.
        if WEAK_FIRST:
            for start in range(0, VALUES, TILE):
                value = start + tl.arange(0, TILE)
                pixel = value % PIXELS
                row, column = _place(pixel // WIDTH, pixel % WIDTH, down, right, mirrored, REFLECT, HEIGHT, WIDTH)
                moved = _pixels_at(source, value // PIXELS, row, column, value < VALUES, HEIGHT, WIDTH)
                tl.store(spare + value, moved, value < VALUES)
            tl.debug_barrier()
            source, num_written = spare, 1
        for layer in range(LAYERS):
            operation = (tl.load(draws + layer) * NUM_OPERATIONS).to(tl.int32)
            if operation != IDENTITY:
                magnitude = tl.load(draws + LAYERS + layer).to(tl.float64)
                setting = tl.load(ranges + 2 * operation) + tl.load(ranges + 2 * operation + 1) * magnitude
                target = spare + (num_written % 2) * VALUES
                if _is_geometric(operation):
                    _move(source, target, operation, setting, CHANNELS, HEIGHT, WIDTH, TILE)
                elif (operation == COLOR) | (operation == SHARPNESS):
                    _blend(source, target, operation, setting, CHANNELS, HEIGHT, WIDTH, TILE)
                else:
                    _map_levels(source, target, tables, operation, setting, CHANNELS, PIXELS, TILE)
                tl.debug_barrier()
                source = target
                num_written += 1
        top, left, last_row, last_column = _square(draws + 2 * LAYERS, CUTOUT, HEIGHT, WIDTH)

    for start in range(0, VALUES, TILE):
        value = start + tl.arange(0, TILE)
        pixel, channel, exists = value // CHANNELS, value % CHANNELS, value < VALUES  # channels-last
        row, column = pixel // WIDTH, pixel % WIDTH
        if WEAK and not (STRONG and WEAK_FIRST):
            row, column = _place(row, column, down, right, mirrored, REFLECT, HEIGHT, WIDTH)
        level = _pixels_at(source, channel, row, column, exists, HEIGHT, WIDTH)
        if STRONG:
            painted = (row >= top) & (row <= last_row) & (column >= left) & (column <= last_column)
            painted &= (row < HEIGHT) & (column < WIDTH)  # the padding of the crop is not painted
            level = tl.where(painted, tl.load(fill + channel, exists, 0), level)
        centred = level.to(tl.float32) - tl.load(mean + channel, exists, 0.0)
        normalised = tl.math.div_rn(centred, tl.load(std + channel, exists, 1.0))  # `/` is less exact
        tl.store(views + view * VALUES + value, normalised, exists)


@triton.jit
def _is_geometric(operation):
    shear = (operation == SHEAR_X) | (operation == SHEAR_Y)
    return (operation == ROTATE) | shear | (operation == TRANSLATE_X) | (operation == TRANSLATE_Y)


@triton.jit
def _move(
    source,
    target,
    operation,
    setting,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rotate, shear or translate: `layers` and `_move` of randaugment, where the roundings are explained."""
    HALF_WIDTH: tl.constexpr = WIDTH / 2
    HALF_HEIGHT: tl.constexpr = HEIGHT / 2
    angle = tl.where(operation == ROTATE, setting, 0.0) * RADIANS
    cos, sin = tl.cos(angle), tl.sin(angle)
    right = tl.floor(tl.where(operation == TRANSLATE_X, setting, 0.0) * WIDTH + 0.5)
    down = tl.floor(tl.where(operation == TRANSLATE_Y, setting, 0.0) * HEIGHT + 0.5)
    left_of_centre = HALF_WIDTH - (HALF_WIDTH * cos - HALF_HEIGHT * sin)
    top_of_centre = HALF_HEIGHT - (HALF_WIDTH * sin + HALF_HEIGHT * cos)
    shear_x = tl.where(operation == SHEAR_X, setting, 0.0) - sin
    shear_y = tl.where(operation == SHEAR_Y, setting, 0.0) + sin
    first_column = _fixed_point(left_of_centre + right + 0.5 * cos + 0.5 * shear_x)
    first_row = _fixed_point(top_of_centre + down + 0.5 * shear_y + 0.5 * cos)
    straight, shear_x, shear_y = _fixed_point(cos), _fixed_point(shear_x), _fixed_point(shear_y)
    for start in range(0, CHANNELS * HEIGHT * WIDTH, TILE):
        value = start + tl.arange(0, TILE)
        exists, channel, pixel = value < CHANNELS * HEIGHT * WIDTH, value // (HEIGHT * WIDTH), value % (HEIGHT * WIDTH)
        row, column = pixel // WIDTH, pixel % WIDTH
        from_column = (straight * column + (shear_x * row + first_column)) >> 16
        from_row = (shear_y * column + (straight * row + first_row)) >> 16
        tl.store(target + value, _pixels_at(source, channel, from_row, from_column, exists, HEIGHT, WIDTH), exists)


@triton.jit
def _fixed_point(number):
    """Round a float64 to 1/65536 and return the number of these fractions."""
    return tl.floor(65536 * number + 0.5).to(tl.int32)


@triton.jit
def _blend(
    source,
    target,
    operation,
    setting,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """Change color or sharpness by a blend with the grey or the smoothed image."""
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    for start in range(0, CHANNELS * PIXELS, TILE):
        value = start + tl.arange(0, TILE)
        exists, pixel = value < CHANNELS * PIXELS, value % PIXELS
        level = tl.load(source + value, exists, 0).to(tl.int32)
        if operation == COLOR:
            other = _luma(source, pixel, exists, CHANNELS, PIXELS)
        else:
            # The mean over each 3x3 neighbourhood, with the centre counted five times. Border pixels do not change.
            row, column = pixel // WIDTH, pixel % WIDTH
            inner = exists & (row > 0) & (row < HEIGHT - 1) & (column > 0) & (column < WIDTH - 1)
            total = 4 * level
            for neighbour in range(9):
                offset = (neighbour // 3 - 1) * WIDTH + neighbour % 3 - 1
                total += tl.load(source + value + offset, inner, 0).to(tl.int32)
            other = tl.where(inner, (2 * total + 13) // 26, level)  # no multiple of 1/13 is a half
        tl.store(target + value, _mixed(level, other, setting), exists)


@triton.jit
def _mixed(level, other, share):
    """Return other + share * (level - other) as uint8. Both levels are whole numbers."""
    mixed = other.to(tl.float32) + share.to(tl.float32) * (level - other).to(tl.float32)
    return mixed.to(tl.int32).to(tl.uint8)


@triton.jit
def _luma(source, pixel, exists, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """Return grey levels by ITU-R 601 in 16 fractional bits."""
    luma = tl.load(source + pixel, exists, 0).to(tl.int32)
    if CHANNELS == 3:
        green = tl.load(source + PIXELS + pixel, exists, 0).to(tl.int32)
        blue = tl.load(source + 2 * PIXELS + pixel, exists, 0).to(tl.int32)
        luma = (19595 * luma + 38470 * green + 7471 * blue + 32768) >> 16
    return luma


@triton.jit
def _map_levels(
    source,
    target,
    tables,
    operation,
    setting,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Auto-contrast, equalize, brightness, contrast, posterize or solarize: map each grey level to a new level."""
    mean = 0  # brightness is a blend with black, contrast with a flat image of the mean grey level
    if operation == CONTRAST:
        total = tl.zeros([TILE], tl.int32)
        for start in range(0, PIXELS, TILE):
            pixel = start + tl.arange(0, TILE)
            total += _luma(source, pixel, pixel < PIXELS, CHANNELS, PIXELS)
        mean = (2 * tl.sum(total, 0) + PIXELS) // (2 * PIXELS)  # a half is rounded up
    level = tl.arange(0, 256)
    for channel in range(CHANNELS):
        plane = source + channel * PIXELS
        if operation == POSTERIZE:
            new_level = level & (255 << (8 - setting.to(tl.int32)))
        elif operation == SOLARIZE:
            new_level = tl.where(level.to(tl.float32) >= setting.to(tl.float32), 255 - level, level)
        elif (operation == AUTO_CONTRAST) | (operation == EQUALIZE):
            count = tl.zeros([256], tl.int32)
            for start in range(0, PIXELS, TILE):
                pixel = start + tl.arange(0, TILE)
                exists = pixel < PIXELS
                count += tl.histogram(tl.load(plane + pixel, exists, 0).to(tl.int32), 256, mask=exists)
            highest = tl.max(tl.where(count > 0, level, 0), 0)
            if operation == AUTO_CONTRAST:
                lowest = tl.min(tl.where(count > 0, level, 255), 0)
                new_level = _stretched(level, lowest, highest)
            else:
                new_level = _equalized(level, count, highest)
        else:
            new_level = _mixed(level, mean, setting).to(tl.int32)
        tl.store(tables + 256 * channel + level, new_level.to(tl.uint8))
    tl.debug_barrier()
    for start in range(0, CHANNELS * PIXELS, TILE):
        value = start + tl.arange(0, TILE)
        exists = value < CHANNELS * PIXELS
        entry = 256 * (value // PIXELS) + tl.load(source + value, exists, 0)
        tl.store(target + value, tl.load(tables + entry, exists, 0), exists)


@triton.jit
def _stretched(level, lowest, highest):
    """Stretch the contrast from lowest..highest to all levels, in float64."""
    varies = highest > lowest
    lowest = tl.where(varies, lowest, 0).to(tl.float64)
    scale = 255.0 / tl.where(varies, highest - lowest, 255.0)
    return (level.to(tl.float64) * scale - lowest * scale).to(tl.int32)


@triton.jit
def _equalized(level, count, highest):
    """Equalize the histogram: every new level has about the same number of pixels."""
    below = tl.cumsum(count, 0) - count
    step = tl.sum(tl.where(level == highest, below, 0), 0) // 255
    return tl.where(step > 0, tl.minimum((step // 2 + below) // tl.maximum(step, 1), 255), level)


@triton.jit
def _square(draws, CUTOUT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the first row and column and the last row and column that the cutout paints."""
    side = CUTOUT * tl.load(draws).to(tl.float64)
    left = tl.floor(tl.maximum(WIDTH * tl.load(draws + 1).to(tl.float64) - side / 2, 0.0))
    top = tl.floor(tl.maximum(HEIGHT * tl.load(draws + 2).to(tl.float64) - side / 2, 0.0))
    # A whole number is at most x exactly if it is at most floor(x). A square without a side has no row.
    last_row = tl.where(side > 0, tl.floor(top + side).to(tl.int32), -1)
    return top.to(tl.int32), left.to(tl.int32), last_row, tl.floor(left + side).to(tl.int32)


@triton.jit
def _crop(draws, PADDING: tl.constexpr, FLIP: tl.constexpr):
    """Return the shift down, the shift to the right, and whether the image is mirrored."""
    down = (tl.load(draws + 1) * (2 * PADDING + 1)).to(tl.int32) - PADDING
    right = (tl.load(draws + 2) * (2 * PADDING + 1)).to(tl.int32) - PADDING
    return down, right, (tl.load(draws) < 0.5) & FLIP


@triton.jit
def _place(row, column, down, right, mirrored, REFLECT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the row and the column of the image that a pixel of the crop shows."""
    row += down
    column += right
    column = tl.where(mirrored, WIDTH - 1 - column, column)
    if REFLECT:
        row = HEIGHT - 1 - tl.abs(HEIGHT - 1 - tl.abs(row))
        column = WIDTH - 1 - tl.abs(WIDTH - 1 - tl.abs(column))
    return row, column


@triton.jit
def _pixels_at(source, channel, row, column, exists, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Read the levels at the given rows and columns, uint8; black outside the image."""
    inside = exists & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    return tl.load(source + (channel * HEIGHT + row) * WIDTH + column, inside, 0)
