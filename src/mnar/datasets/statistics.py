"""Mean and standard deviation of a training set, for whitening."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_and_std(train_x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel, of values in 0..1 (uint8 images), or per feature (tables)."""
    if train_x.dtype == torch.uint8:
        mean, variance = _image_moments(train_x)
    else:
        variance, mean = torch.var_mean(train_x.double(), dim=0, correction=0)
    std = variance.sqrt()
    std[std == 0] = 1.0  # a constant channel is only centred
    return tuple(mean.tolist()), tuple(std.tolist())


def _image_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """From a histogram of the 256 grey levels: exact, and without a copy of the images as floats."""
    level = torch.arange(256, dtype=torch.float64) / 255
    histogram = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])
    share = histogram / histogram.sum(dim=1, keepdim=True, dtype=torch.float64)
    mean = share @ level
    variance = (share * (level - mean[:, None]) ** 2).sum(dim=1)
    return mean, variance
