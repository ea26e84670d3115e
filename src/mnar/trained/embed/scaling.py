"""How samples are scaled before a network sees them: a mean is subtracted, and the result divided by a deviation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mnar.atomic_write import from_json
from mnar.datasets.statistics import mean_and_std

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # what TorchVision, timm and most others train with
Scale = Literal["auto", "imagenet", "data", "none"]
MOST_NUMBERS = 3  # for a message
SCALES: tuple[Scale, ...] = ("auto", "imagenet", "data", "none")


class Scaling(NamedTuple):
    """A mean and a standard deviation per channel of an image, whose pixels are in 0..1, or per column."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    reason: str  # in words

    @property
    def in_words(self) -> str:
        """The reason and, if they are few, the numbers."""
        if max(len(self.mean), len(self.std)) > MOST_NUMBERS or (self.mean, self.std) == ((0.0,), (1.0,)):
            return self.reason
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"{self.reason} (mean {mean}; standard deviation {std})"

    def apply(self, x: Tensor, num_channels: int) -> Tensor:
        """Return scaled samples. An image with one channel is repeated for a network that takes several."""
        is_image = x.dtype == torch.uint8
        values = x.float() / 255 if is_image else x.float()
        if is_image and values.shape[1] == 1:
            values = values.expand(-1, num_channels, -1, -1)
        shape = (-1, *[1] * (values.ndim - 2))
        mean, std = (torch.tensor(part, device=x.device).view(shape) for part in (self.mean, self.std))
        return (values - mean) / std


def channels_of(network: nn.Module, x: Tensor) -> int:
    """Return the number of channels that the network takes: those of its first convolution, or those of the data."""
    has = x.shape[1]
    if x.ndim != 4:
        return has
    first = next((module for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    takes = has if first is None else first.in_channels
    if has not in (1, takes):
        raise ValueError(
            f"the network takes images with {takes} channels, but the data have {has}; let FACTORY return a network "
            f"for {has} channels"
        )
    return takes


def choose_scaling(
    scale: Scale,
    x: Tensor,
    num_channels: int,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: Path | None = None,
    like: Scaling | None = None,
) -> Scaling:
    """Return how the samples `x` are scaled.

    `like` is the scaling of earlier samples. `mean` and `std` are given by the user. Otherwise, "auto" takes what a
    model file of `mnar train` says, or ImageNet's numbers for images with three channels, or those of the data. "none"
    leaves pixels in 0..1 and columns as they are.
    """
    if (mean is None) != (std is None):
        raise ValueError("--mean and --std belong together; give both, or none of them")
    if like is not None:
        found = like
    elif mean is not None and std is not None:
        found = Scaling(tuple(mean), tuple(std), "the given mean and standard deviation")
    elif scale == "auto" and (stored := _of_model_file(weights)) is not None:
        found = Scaling(*stored, f"the mean and standard deviation in {weights}")
    elif scale == "imagenet" or (scale == "auto" and x.ndim == 4 and num_channels == 3):
        if x.ndim != 4 or num_channels != 3:
            raise ValueError(
                "--scale imagenet is for networks that take images with three channels; choose --scale data"
            )
        found = Scaling(*IMAGENET, "ImageNet's mean and standard deviation")
    elif scale == "none":
        found = Scaling((0.0,), (1.0,), "no scaling")
    else:
        found = Scaling(*mean_and_std(x), "the mean and standard deviation of the data")
    for name, values in (("mean", found.mean), ("standard deviation", found.std)):
        if len(values) not in (1, num_channels):
            what = "channels" if x.ndim == 4 else "columns"
            raise ValueError(
                f"{found.reason}: there are {len(values)} numbers for the {name}, but {num_channels} {what}; give one "
                "number, or one for each"
            )
    if min(found.std) <= 0:
        raise ValueError(f"--std is {', '.join(map(str, found.std))}; give positive numbers")
    return found


def _of_model_file(weights: Path | None) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and standard deviation in a model file of `mnar train`, or None if it is another file."""
    from safetensors import SafetensorError, safe_open

    if weights is None or weights.suffix.lower() != ".safetensors":
        return None
    try:
        with safe_open(weights, framework="pt") as file:
            stored = from_json((file.metadata() or {})["mnar"])
        return tuple(map(float, stored["mean"])), tuple(map(float, stored["std"]))
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None
