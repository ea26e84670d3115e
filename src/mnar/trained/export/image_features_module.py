"""The features of images for the members of a portfolio, as torch modules that torch.export and ONNX can express.

own_data/portfolio/image_features.py explains the features. The modules compute the same numbers by other operations
where ONNX lacks one: adaptive pooling is a matrix product, and the direction of a gradient is found by half planes
instead of the arc tangent.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.own_data.inspection.image_probe import CONTRAST_FLOOR, GRID, LARGEST_SIDE, THRESHOLD
from mnar.own_data.portfolio.image_features import (
    COLOR_CELLS,
    NUM_CELLS,
    NUM_DIRECTIONS,
    SMALLEST_STD,
    ImageEncoder,
)
from mnar.trained.export.region_means import RegionMeans

SHORTEST = 1e-12  # `F.normalize` divides by at least this length
COLOUR_CHANNELS = 3  # in colour images, the features of the image and of its mirror image are averaged


class ImageFeatures(nn.Module):
    """Computes the features [n, d] of images uint8 [n, channels, height, width] of one size."""

    mean: Tensor  # [f]
    scale: Tensor  # [f]
    components: Tensor  # [f, d]

    def __init__(self, encoder: ImageEncoder, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.is_mirrored = channels == COLOUR_CHANNELS
        self.patches = PatchResponses(encoder.patches.filters, encoder.patches.offset, (height, width))
        self.gradients = GradientHistograms((height, width))
        self.colors = RegionMeans((height, width), (min(COLOR_CELLS, height), min(COLOR_CELLS, width)))
        self.register_buffer("mean", torch.from_numpy(encoder.mean).double())
        self.register_buffer("scale", torch.from_numpy(encoder.scale).double())
        self.register_buffer("components", torch.from_numpy(encoder.components).double())

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.float()
        # One batch of both views needs half as many operations in the exported file as two batches.
        views = torch.cat([pixels, pixels.flip(3)]) if self.is_mirrored else pixels
        kinds = [self.patches(views), self.gradients(views), self.colors(views / 255).flatten(1)]
        if self.is_mirrored:
            count = images.shape[0]
            kinds = [(kind[:count] + kind[count:]) / 2 for kind in kinds]
        of_patches, of_gradients, colors = kinds
        raw = torch.cat([of_patches.sqrt(), of_gradients, colors], 1).double()
        scaled = (raw - self.mean) * self.scale
        lengths = scaled.square().sum(1, keepdim=True).sqrt().clamp(min=SMALLEST_STD)
        return ((scaled / lengths) @ self.components).float()


class PatchResponses(nn.Module):
    """Averaged responses to the whitened patches."""

    filters: Tensor  # [f, pixels of a window]
    offset: Tensor  # [f, 1]

    def __init__(self, filters: Tensor, offset: Tensor, size: tuple[int, int]) -> None:
        super().__init__()
        shrunk = min(size[0], LARGEST_SIDE), min(size[1], LARGEST_SIDE)
        self.shrink: nn.Module = nn.Identity() if shrunk == size else RegionMeans(size, shrunk)
        self.stride = 2 if min(shrunk) >= LARGEST_SIDE // 2 else 1
        self.side = filters.shape[2]
        self.num_windows = tuple((length - self.side) // self.stride + 1 for length in shrunk)
        self.pool = RegionMeans((self.num_windows[0], self.num_windows[1]), (GRID, GRID))
        self.register_buffer("filters", filters.flatten(1).clone())
        self.register_buffer("offset", offset[:, None].clone())

    def forward(self, pixels: Tensor) -> Tensor:
        windows = F.unfold(self.shrink(pixels), self.side, stride=self.stride)
        windows = windows - windows.mean(1, keepdim=True)
        contrast = (windows.square().mean(1, keepdim=True) + CONTRAST_FLOOR).sqrt()
        responses = (self.filters @ windows / contrast - self.offset).unflatten(2, self.num_windows)
        means: Tensor = self.pool(torch.cat([responses - THRESHOLD, -responses - THRESHOLD], dim=1).relu())
        return means.flatten(1)


class GradientHistograms(nn.Module):
    """Histograms of oriented gradients."""

    cosines: Tensor  # [directions - 1, 1, 1] of the borders between the bins
    sines: Tensor
    numbers: Tensor  # [directions, 1, 1]

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.sides = min(NUM_CELLS, size[0]), min(NUM_CELLS, size[1])
        self.pool = RegionMeans(size, self.sides)
        borders = torch.arange(1, NUM_DIRECTIONS, dtype=torch.float64)[:, None, None] * (math.pi / NUM_DIRECTIONS)
        self.register_buffer("cosines", borders.cos())
        self.register_buffer("sines", borders.sin())
        self.register_buffer("numbers", torch.arange(NUM_DIRECTIONS)[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        grey = pixels.mean(1)
        right = _differences(grey)
        down = _differences(grey.transpose(1, 2)).transpose(1, 2)
        # Opposite gradients have the same direction, so each gradient is turned into the upper half plane.
        is_below = (down < 0) | ((down == 0) & (right < 0))
        sign = torch.where(is_below, -1.0, 1.0)
        up, along = (down * sign).double()[:, None], (right * sign).double()[:, None]
        number = (up * self.cosines - along * self.sines >= 0).long().sum(1, keepdim=True)
        number = torch.where((up == 0) & (along == 0), 0, number)  # without a gradient, all borders would count
        strength = (down.square() + right.square()).sqrt()[:, None]
        cells = self.pool(torch.where(number == self.numbers, strength, 0.0))
        blocks = _blocks(cells, min(2, self.sides[0]), min(2, self.sides[1]))
        lengths = blocks.square().sum(1, keepdim=True).sqrt().clamp(min=SHORTEST)
        return (blocks / lengths).flatten(1)


def _differences(grey: Tensor) -> Tensor:
    """Return the differences between the right and the left neighbour of each pixel, 0 at the border."""
    if grey.shape[2] < 3:
        return torch.zeros_like(grey)
    return F.pad(grey[:, :, 2:] - grey[:, :, :-2], (1, 1))


def _blocks(cells: Tensor, height: int, width: int) -> Tensor:
    """Return blocks of neighbouring cells, [n, directions * cells of a block, blocks], in the order of `F.unfold`."""
    rows, columns = cells.shape[2] - height + 1, cells.shape[3] - width + 1
    shifted = [cells[:, :, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
    return torch.stack(shifted, 2).flatten(1, 2).flatten(2)
