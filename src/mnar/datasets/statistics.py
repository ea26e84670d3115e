"""Compute the mean and the standard deviation of a training set, which models use to whiten their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_BYTES = 2**24  # samples are read in chunks, because a memory-mapped file may be larger than the memory


def mean_and_std(train_x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation: per channel of values in 0..1 (uint8 images), or per feature (tables)."""
    mean, variance = _image_moments(train_x) if train_x.dtype == torch.uint8 else _table_moments(train_x)
    std = variance.sqrt()
    std[std == 0] = 1.0  # a constant channel is only centred
    return tuple(mean.tolist()), tuple(std.tolist())


def _image_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance per channel, computed from a histogram of the 256 grey levels.

    The histogram is exact, and needs no copy of the images as floats.
    """
    level = torch.arange(256, dtype=torch.float64) / 255
    histogram = torch.zeros(images.shape[1], 256, dtype=torch.int64)
    for chunk in _chunks(images):
        histogram += torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in chunk.unbind(1)])
    share = histogram / histogram.sum(dim=1, keepdim=True, dtype=torch.float64)
    mean = share @ level
    variance = (share * (level - mean[:, None]) ** 2).sum(dim=1)
    return mean, variance


def _table_moments(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance per feature, combined from chunks (Chan et al., 1979).

    Sums of squares would lose digits by cancellation where the mean is large.
    """
    mean, variance = torch.zeros(2, table.shape[1], dtype=torch.float64)
    num_rows = 0
    for chunk in _chunks(table):
        variance_here, mean_here = torch.var_mean(chunk.double(), dim=0, correction=0)
        num_rows += len(chunk)
        share = len(chunk) / num_rows
        difference = mean_here - mean
        mean = mean + share * difference
        variance = (1 - share) * variance + share * variance_here + share * (1 - share) * difference**2
    return mean, variance


def _chunks(x: Tensor) -> Iterator[Tensor]:
    bytes_per_row = max(x[:1].nbytes, 1)
    return iter(x.split(max(1, CHUNK_BYTES // bytes_per_row)))
