"""The view of contrastive learning (SimCLR, Chen et al., 2020): a random part of the image in changed colours.

A contrastive loss compares two views of an image. If both views show the same part in the same colours, the network can
recognise the image by its colours alone. A crop of random size and changed colours prevent that.

The crop has 20 to 100 % of the area of the image and is enlarged to the size of the image. Half of the crops are
mirrored. 80 % of them get another brightness, contrast, saturation and hue, and 20 % become grey. The paper changes the
four colour properties in a random order, here the order is fixed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Uniform numbers per sample: area, shape, row, column, mirror, jitter, brightness, contrast, saturation, hue, grey.
CONTRAST_DRAWS = 11
SMALLEST_AREA = 0.2  # of the image
LARGEST_ASPECT = 4 / 3  # width divided by height, and the other way round
JITTER_SHARE, GREY_SHARE = 0.8, 0.2
JITTER = 0.4  # brightness, contrast and saturation are multiplied by 0.6 to 1.4
HUE_JITTER = 0.1  # of a full circle, in both directions
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow


def contrast_view(images: Tensor, uniforms: Tensor, *, flip: bool) -> Tensor:
    """Return float32 images with values from 0 to 255.

    images      uint8 [n, channels, height, width]
    uniforms    [n, CONTRAST_DRAWS], uniform in [0, 1)
    flip        whether half of the images are mirrored
    """
    area, shape, down, right, mirror, jitter, *amounts, grey = uniforms.unbind(1)
    crops = resized_crop(images.float(), area, shape, down, right, mirrored=(mirror < 0.5) & flip)
    colored = color_jitter(crops, *amounts)
    crops = torch.where(_per_image(jitter < JITTER_SHARE), colored, crops)
    return torch.where(_per_image(grey < GREY_SHARE), _luma(crops), crops)


def resized_crop(
    images: Tensor, area: Tensor, shape: Tensor, down: Tensor, right: Tensor, *, mirrored: Tensor
) -> Tensor:
    """Enlarge a random part of each image to the size of the image, with bilinear interpolation.

    All arguments but `images` have one number per image: `area`, `shape`, `down` and `right` are uniform in [0, 1) and
    choose the size, the aspect and the place of the part.
    """
    height, width = images.shape[-2:]
    aspect = torch.exp(math.log(LARGEST_ASPECT) * (2 * shape - 1))
    side = (SMALLEST_AREA + (1 - SMALLEST_AREA) * area).sqrt()
    # Shares of the height and the width of the image; the corner of the part follows from what is left.
    high, wide = (side / aspect.sqrt()).clamp(max=1), (side * aspect.sqrt()).clamp(max=1)
    top, left = down * (1 - high), right * (1 - wide)
    # grid_sample counts from -1 to 1, from the outer edge of the first pixel to that of the last one.
    rows = 2 * (top[:, None] + high[:, None] * _centres(height, images.device)) - 1
    columns = 2 * (left[:, None] + wide[:, None] * _centres(width, images.device)) - 1
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    rows, columns = rows[:, :, None].expand(-1, -1, width), columns[:, None, :].expand(-1, height, -1)
    places = torch.stack([columns, rows], dim=3)
    return F.grid_sample(images, places, mode="bilinear", padding_mode="border", align_corners=False)


def color_jitter(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image; all four are uniform in [0, 1), one per image."""
    images = _blend(torch.zeros_like(images), images, brightness)
    images = _blend(_luma(images).mean((1, 2, 3), keepdim=True), images, contrast)
    if images.shape[1] == 1:  # a grey image has no colours
        return images
    images = _blend(_luma(images), images, saturation)
    return _turn_hue(images, 2 * math.pi * HUE_JITTER * (2 * hue - 1))


def _blend(other: Tensor, images: Tensor, amount: Tensor) -> Tensor:
    """Move each image away from the other one, or towards it."""
    factor = _per_image(1 + JITTER * (2 * amount - 1))
    return (other + factor * (images - other)).clamp(0, 255)


def _turn_hue(images: Tensor, angle: Tensor) -> Tensor:
    """Rotate the two colour differences of the television standard NTSC, I and Q, and keep the luma."""
    red, green, blue = images.unbind(1)
    luma = _luma(images)[:, 0]
    i = 0.5959 * red - 0.2746 * green - 0.3213 * blue
    q = 0.2115 * red - 0.5227 * green + 0.3112 * blue
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    i, q = cos * i - sin * q, sin * i + cos * q
    red, green, blue = luma + 0.9561 * i + 0.6208 * q, luma - 0.2721 * i - 0.6472 * q, luma - 1.1067 * i + 1.7044 * q
    return torch.stack([red, green, blue], dim=1).clamp(0, 255)


def _luma(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None].expand_as(images)


def _centres(size: int, device: torch.device) -> Tensor:
    """The centres of `size` pixels, as shares of the whole side."""
    return (torch.arange(size, device=device) + 0.5) / size


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]
