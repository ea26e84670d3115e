"""The Triton kernels of fused_norm. The docstring of fused_norm has the formulas and explains the kernels.

A program handles all channels of a chunk of `tiles` times BLOCK_ROWS rows. A program of a combining kernel
(combine_moments, combine_gradients) handles the results of all chunks for one channel.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# (Triton has no type stubs, and a kernel's pointer arguments have no Python type)

from __future__ import annotations

import triton
import triton.language as tl

# Values that are read for the last time in this pass leave the cache first, and results that the next layer reads stay
# in the cache as long as possible.
LAST_READ = tl.constexpr("evict_first")
READ_SOON = tl.constexpr("evict_last")


@triton.jit
def gather_moments(
    x,
    skip,
    total,
    partial,
    num_rows,
    tiles,
    HAS_SKIP: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write total = x + skip. Write the mean and the sum of squared deviations of this program's rows to partial."""
    first_tile = tl.program_id(0) * tiles
    num_mine = tl.minimum(tiles * BLOCK_ROWS, num_rows - first_tile * BLOCK_ROWS).to(tl.float32)
    # Deviations are taken from a row of the data, not from zero. Otherwise, if the mean is large, its square would make
    # the variance inexact.
    first_row = tl.cast(first_tile, tl.int64) * (BLOCK_ROWS * CHANNELS)
    shift = _per_channel(x + first_row, CHANNELS, BLOCK_CHANNELS)
    if HAS_SKIP:
        shift += _per_channel(skip + first_row, CHANNELS, BLOCK_CHANNELS)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), tl.float32)
    squares = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), tl.float32)
    for step in range(tiles):
        start, offsets, inside = _tile(first_tile + step, num_rows, CHANNELS, BLOCK_ROWS, BLOCK_CHANNELS)
        if not HAS_SKIP:
            value = tl.load(x + start + offsets, inside, 0.0)  # `normalise` reads x again
        else:
            value = tl.load(x + start + offsets, inside, 0.0, eviction_policy=LAST_READ)
            skipped = tl.load(skip + start + offsets, inside, 0.0, eviction_policy=LAST_READ)
            value = (value.to(tl.float32) + skipped).to(value.dtype)
            tl.store(total + start + offsets, value, inside)
        deviation = tl.where(inside, value.to(tl.float32) - shift, 0.0)
        sums += deviation
        squares += deviation * deviation
    mean = tl.sum(sums, 0) / num_mine
    spread = tl.sum(squares, 0) - num_mine * mean * mean
    _store_partial(partial, tl.sum(shift, 0) + mean, spread, CHANNELS, BLOCK_CHANNELS)


@triton.jit
def combine_moments(
    partial,
    mean,
    rstd,
    running_mean,
    running_var,
    num_batches_tracked,
    momentum,
    eps,
    num_rows,
    chunk_rows,
    num_chunks,
    HAS_RUNNING: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Combine the moments of all programs for one channel (Chan et al., 1979). Update running statistics, if any."""
    channel = tl.program_id(0)
    means = _partial_of(partial, 0, channel, num_chunks, BLOCK_CHUNKS)
    spreads = _partial_of(partial, 1, channel, num_chunks, BLOCK_CHUNKS)
    remaining = num_rows - tl.arange(0, BLOCK_CHUNKS) * chunk_rows
    weights = tl.maximum(tl.minimum(remaining, chunk_rows), 0).to(tl.float32)
    batch_mean = tl.sum(weights * means, 0) / num_rows
    between = means - batch_mean
    spread = tl.sum(spreads + weights * between * between, 0)

    tl.store(mean + channel, batch_mean)
    tl.store(rstd + channel, 1.0 / tl.sqrt(spread / num_rows + eps))
    if HAS_RUNNING:
        old_mean = tl.load(running_mean + channel)
        old_var = tl.load(running_var + channel)
        tl.store(running_mean + channel, old_mean + momentum * (batch_mean - old_mean))
        tl.store(running_var + channel, old_var + momentum * (spread / (num_rows - 1) - old_var))
        if channel == 0:
            tl.store(num_batches_tracked, tl.load(num_batches_tracked) + 1)


@triton.jit
def normalise(
    total,
    activated,
    mean,
    rstd,
    weight,
    bias,
    slope,
    num_rows,
    tiles,
    CHANNELS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write activated = leaky(z) for this program's rows, last tile first."""
    mean = _per_channel(mean, CHANNELS, BLOCK_CHANNELS)
    scale = _per_channel(weight, CHANNELS, BLOCK_CHANNELS) * _per_channel(rstd, CHANNELS, BLOCK_CHANNELS)
    bias = _per_channel(bias, CHANNELS, BLOCK_CHANNELS)
    last_tile = (tl.num_programs(0) - tl.program_id(0)) * tiles - 1
    for step in range(tiles):
        start, offsets, inside = _tile(last_tile - step, num_rows, CHANNELS, BLOCK_ROWS, BLOCK_CHANNELS)
        value = tl.load(total + start + offsets, inside, 0.0, eviction_policy=LAST_READ)
        z = (value.to(tl.float32) - mean) * scale + bias
        value = tl.where(z > 0, z, slope * z).to(value.dtype)
        tl.store(activated + start + offsets, value, inside, eviction_policy=READ_SOON)


@triton.jit
def gather_gradients(
    total,
    grad_activated,
    partial,
    mean,
    rstd,
    weight,
    bias,
    slope,
    num_rows,
    tiles,
    CHANNELS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write the sums of g and of g (s - mean) over this program's rows to partial."""
    mean = _per_channel(mean, CHANNELS, BLOCK_CHANNELS)
    scale = _per_channel(weight, CHANNELS, BLOCK_CHANNELS) * _per_channel(rstd, CHANNELS, BLOCK_CHANNELS)
    bias = _per_channel(bias, CHANNELS, BLOCK_CHANNELS)
    grad_sums = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), tl.float32)
    product_sums = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), tl.float32)
    first_tile = tl.program_id(0) * tiles
    for step in range(tiles):
        start, offsets, inside = _tile(first_tile + step, num_rows, CHANNELS, BLOCK_ROWS, BLOCK_CHANNELS)
        value = tl.load(total + start + offsets, inside, 0.0).to(tl.float32)
        grad = tl.load(grad_activated + start + offsets, inside, 0.0).to(tl.float32)
        deviation = value - mean
        grad = tl.where(deviation * scale + bias > 0, grad, slope * grad)
        grad_sums += grad
        product_sums += grad * deviation
    _store_partial(partial, tl.sum(grad_sums, 0), tl.sum(product_sums, 0), CHANNELS, BLOCK_CHANNELS)


@triton.jit
def combine_gradients(
    partial, rstd, grad_weight, grad_bias, num_rows, chunk_rows, num_chunks, BLOCK_CHUNKS: tl.constexpr
):
    """Combine the sums of all programs for one channel into the gradients of weight and bias."""
    channel = tl.program_id(0)
    grad = tl.sum(_partial_of(partial, 0, channel, num_chunks, BLOCK_CHUNKS), 0)
    product = tl.sum(_partial_of(partial, 1, channel, num_chunks, BLOCK_CHUNKS), 0)
    tl.store(grad_bias + channel, grad)
    tl.store(grad_weight + channel, product * tl.load(rstd + channel))


@triton.jit
def input_gradient(
    total,
    grad_activated,
    grad_total,
    grad_x,
    grad_weight,
    grad_bias,
    mean,
    rstd,
    weight,
    bias,
    slope,
    num_rows,
    tiles,
    HAS_GRAD_TOTAL: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write ds, the gradient of the sum s, for this program's rows, last tile first."""
    mean = _per_channel(mean, CHANNELS, BLOCK_CHANNELS)
    rstd = _per_channel(rstd, CHANNELS, BLOCK_CHANNELS)
    scale = _per_channel(weight, CHANNELS, BLOCK_CHANNELS) * rstd
    bias = _per_channel(bias, CHANNELS, BLOCK_CHANNELS)
    mean_grad = _per_channel(grad_bias, CHANNELS, BLOCK_CHANNELS) / num_rows
    mean_product = _per_channel(grad_weight, CHANNELS, BLOCK_CHANNELS) * rstd / num_rows
    last_tile = (tl.num_programs(0) - tl.program_id(0)) * tiles - 1
    for step in range(tiles):
        start, offsets, inside = _tile(last_tile - step, num_rows, CHANNELS, BLOCK_ROWS, BLOCK_CHANNELS)
        value = tl.load(total + start + offsets, inside, 0.0, eviction_policy=LAST_READ)
        grad = tl.load(grad_activated + start + offsets, inside, 0.0, eviction_policy=LAST_READ).to(tl.float32)
        deviation = value.to(tl.float32) - mean
        grad = tl.where(deviation * scale + bias > 0, grad, slope * grad)
        grad = scale * (grad - mean_grad - deviation * mean_product)
        if HAS_GRAD_TOTAL:
            grad += tl.load(grad_total + start + offsets, inside, 0.0, eviction_policy=LAST_READ).to(tl.float32)
        tl.store(grad_x + start + offsets, grad.to(value.dtype), inside)


@triton.jit
def _tile(tile, num_rows, CHANNELS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """Return the start of the tile, the offsets within the tile, and the mask of the elements that exist.

    The start has 64 bits, since a tensor may have more than 2^31 elements.
    """
    row = tl.arange(0, BLOCK_ROWS)[:, None]
    channel = tl.arange(0, BLOCK_CHANNELS)[None, :]
    start = tl.cast(tile, tl.int64) * (BLOCK_ROWS * CHANNELS)
    inside = (tile * BLOCK_ROWS + row < num_rows) & (channel < CHANNELS)
    return start, row * CHANNELS + channel, inside


@triton.jit
def _per_channel(values, CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """Load one value per channel as a float32 row [1, BLOCK_CHANNELS]."""
    channel = tl.arange(0, BLOCK_CHANNELS)
    return tl.load(values + channel, channel < CHANNELS, 0.0).to(tl.float32)[None, :]


@triton.jit
def _store_partial(partial, first, second, CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """Store two values per channel in partial [2, channels, chunks].

    In this layout the values that a combining program reads for its channel are next to each other.
    """
    channel = tl.arange(0, BLOCK_CHANNELS)
    mine = partial + channel * tl.num_programs(0) + tl.program_id(0)
    tl.store(mine, first, channel < CHANNELS)
    tl.store(mine + CHANNELS * tl.num_programs(0), second, channel < CHANNELS)


@triton.jit
def _partial_of(partial, which: tl.constexpr, channel, num_chunks, BLOCK_CHUNKS: tl.constexpr):
    """Load the first (which = 0) or second (which = 1) value of all chunks for one channel."""
    index = tl.arange(0, BLOCK_CHUNKS)
    start = (which * tl.num_programs(0) + channel) * num_chunks  # The kernel has one program per channel.
    return tl.load(partial + start + index, index < num_chunks, 0.0)
