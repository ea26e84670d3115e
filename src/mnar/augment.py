"""Weak and strong views of whole image batches, on their device, with an own random draw for each sample.

Every random decision is a pure function of uniform numbers that are drawn once per view, so a view can be
tested, compiled, captured in a CUDA graph and repeated from a saved generator state. A strong view is
RandAugment (Cubuk et al., 2020) as FixMatch uses it: operations drawn with replacement, each at a uniform
magnitude, then one cutout. The operations follow Pillow's arithmetic; the tests compare them pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NEUTRAL = {  # the settings of a sample, at values that change nothing
    "angle": 0.0,  # degrees
    "shear_x": 0.0,
    "shear_y": 0.0,
    "translate_x": 0.0,  # share of the width
    "translate_y": 0.0,  # share of the height
    "factor": 1.0,  # share of the image in a mix with black, or with one of the next three
    "grey": 0.0,
    "flat": 0.0,
    "smooth": 0.0,
    "stretch": 0.0,
    "equalize": 0.0,
    "bits": 8.0,
    "threshold": 256.0,
}
RANGES: dict[str, dict[str, tuple[float, float]]] = {  # what an operation sets, at magnitude 0 and at 1
    "identity": {},
    "auto_contrast": {"stretch": (1.0, 1.0)},
    "equalize": {"equalize": (1.0, 1.0)},
    "brightness": {"factor": (0.05, 0.95)},
    "color": {"factor": (0.05, 0.95), "grey": (1.0, 1.0)},
    "contrast": {"factor": (0.05, 0.95), "flat": (1.0, 1.0)},
    "sharpness": {"factor": (0.05, 0.95), "smooth": (1.0, 1.0)},
    "posterize": {"bits": (4.0, 8.0)},
    "rotate": {"angle": (-30.0, 30.0)},
    "shear_x": {"shear_x": (-0.3, 0.3)},
    "shear_y": {"shear_y": (-0.3, 0.3)},
    "solarize": {"threshold": (0.0, 256.0)},
    "translate_x": {"translate_x": (-0.3, 0.3)},
    "translate_y": {"translate_y": (-0.3, 0.3)},
}
OPERATIONS = tuple(RANGES)

VIEWS = ("id", "weak", "strong")
PADDING_MODES = ("zero", "reflect")
ORDERS = ("strong_first", "weak_first")

CROP_DRAWS = 3  # uniform numbers a sample: flip, down, right
CUTOUT_DRAWS = 3  # side, centre across, centre down
CUTOUT_COLORS = {1: (123,), 3: (125, 123, 114)}  # by number of channels


class Layer(NamedTuple):
    """One operation for each sample: what the settings come to on images of one size."""

    affine: Tensor  # int32 [3,2,n,1]: where a pixel is taken from, (column, row) in 1/65536
    weights: Tensor  # float32 [4,n,1,1,1]: factor, grey, flat, smooth
    switches: Tensor  # bool [2,n,1,1,1]: stretch, equalize
    kept_bits: Tensor  # uint8 [n,1,1,1]
    threshold: Tensor  # float32 [n,1,1,1]


def apply_operation(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """One operation for each sample.

    images       uint8 [n,c,h,w]
    operation    int64 [n], places in `OPERATIONS`
    magnitude    float32 [n] in [0,1), mapped linearly to the operation's range in `RANGES`
    """
    table = _range_table().to(images.device)
    (layer,) = _layers(table, operation[None], magnitude[None], *images.shape[-2:])
    return _apply(images, layer)


def crop_and_flip(images: Tensor, uniforms: Tensor, *, padding: int, padding_mode: str, flip: bool) -> Tensor:
    """Mirror an image or not, then cut a window of its size out of it with `padding` pixels all round.

    Cropping first and mirroring then has the same distribution, so there is one order.
    """
    height, width = images.shape[-2:]
    if padding_mode == "reflect" and padding >= min(height, width):
        raise ValueError(
            f"reflect padding of {padding} pixels needs larger images than {height}x{width}; "
            "use a smaller padding or padding_mode='zero'"
        )
    mirrored, down, right = uniforms[:, :, None].unbind(1)
    row, column = _grid(images)
    rows = row + (_whole(down, 2 * padding + 1) - padding)
    columns = column + (_whole(right, 2 * padding + 1) - padding)
    if flip:
        columns = torch.where(mirrored < 0.5, width - 1 - columns, columns)
    if padding_mode == "reflect":
        rows = height - 1 - (height - 1 - rows.abs()).abs()
        columns = width - 1 - (width - 1 - columns.abs()).abs()
    return _pixels(images, rows, columns)


def cutout(images: Tensor, uniforms: Tensor, *, largest: float = 0.5, fill: Tensor) -> Tensor:
    """Paint one square, its side at most `largest` of the width, in the colour `fill` (uint8 [c]).

    Its centre is uniform over the image. Where it would stick out at the top or left it is shifted inside; at
    the bottom or right it is cut. Both end pixels are painted, as by Pillow's rectangle.
    """
    height, width = images.shape[-2:]
    side, across, down = uniforms[:, :, None].unbind(1)
    side = largest * width * side
    left = (width * across - side / 2).clamp(min=0).floor()
    top = (height * down - side / 2).clamp(min=0).floor()
    row = torch.arange(height, device=images.device, dtype=torch.float32)
    column = torch.arange(width, device=images.device, dtype=torch.float32)
    in_rows = (row >= top) & (row <= top + side) & (side > 0)
    in_columns = (column >= left) & (column <= left + side)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]
    return torch.where(inside, fill[:, None, None], images)


class Augment(nn.Module):
    """Views of uint8 image batches, normalised to float32 in channels-last memory.

    Views are "id" (normalised only), "weak" (crop and flip) and "strong" (RandAugment and cutout beside crop
    and flip); a trailing digit, as in "strong2", is another independent draw.

    mean, std     of each channel, of values in 0..1; one of each for grey images, three for colour
    operations    how many operations of RandAugment
    cutout        the largest side of the cutout, as a share of the width
    order         "strong_first": RandAugment and cutout, then crop and flip (CIFAR); "weak_first": the other
                  way round (mini-ImageNet, with padding=10 and padding_mode="reflect")
    """

    mean: Tensor
    std: Tensor
    fill: Tensor
    range_table: Tensor

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        padding: int = 4,
        padding_mode: str = "zero",
        flip: bool = True,
        operations: int = 3,
        cutout: float = 0.5,
        order: str = "strong_first",
    ) -> None:
        super().__init__()
        if len(mean) not in CUTOUT_COLORS or len(mean) != len(std):
            raise ValueError(f"got {len(mean)} means and {len(std)} stds; give 1 of each (grey) or 3 (colour)")
        if min(std) <= 0:
            raise ValueError(f"std must be positive in every channel, got {tuple(std)}")
        if padding < 0:
            raise ValueError(f"padding must be 0 or more, got {padding}")
        if padding_mode not in PADDING_MODES:
            raise ValueError(f"unknown padding_mode {padding_mode!r}; choose from {PADDING_MODES}")
        if operations < 0:
            raise ValueError(f"operations must be 0 or more, got {operations}")
        if not 0 <= cutout <= 1:
            raise ValueError(f"cutout must be a share of the width in 0..1, got {cutout}")
        if order not in ORDERS:
            raise ValueError(f"unknown order {order!r}; choose from {ORDERS}")
        self.padding = padding
        self.padding_mode = padding_mode
        self.flip = flip
        self.operations = operations
        self.cutout = cutout
        self.order = order
        # In grey levels, 0..255, so that normalising is one subtraction and one division.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(-1, 1, 1), persistent=False)
        fill = torch.tensor(CUTOUT_COLORS[len(mean)], dtype=torch.uint8)
        self.register_buffer("fill", fill, persistent=False)
        self.register_buffer("range_table", _range_table(), persistent=False)

    def forward(self, images: Tensor, view: str) -> Tensor:
        kind = view[:-1] if view[-1:].isdigit() else view
        if kind not in VIEWS:
            raise ValueError(f"unknown view {view!r}; choose from {VIEWS}, or a further draw such as 'weak2'")
        channels = len(self.fill)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != channels:
            found = f"{images.dtype} {list(images.shape)}"
            raise ValueError(f"expected uint8 images [n, {channels}, height, width], got {found}")
        if kind == "weak":
            images = self._weak(images, self._draw(images, CROP_DRAWS))
        elif kind == "strong":
            strong_draws = 2 * self.operations + CUTOUT_DRAWS
            uniforms = self._draw(images, strong_draws + CROP_DRAWS)
            strong, weak = uniforms[:, :strong_draws], uniforms[:, strong_draws:]
            if self.order == "strong_first":
                images = self._weak(self._strong(images, strong), weak)
            else:
                images = self._strong(self._weak(images, weak), strong)
        normalised = (images.float() - self.mean) / self.std
        return normalised.contiguous(memory_format=torch.channels_last)

    def _draw(self, images: Tensor, count: int) -> Tensor:
        return torch.rand(len(images), count, device=images.device, dtype=torch.float32)

    def _weak(self, images: Tensor, uniforms: Tensor) -> Tensor:
        return crop_and_flip(images, uniforms, padding=self.padding, padding_mode=self.padding_mode, flip=self.flip)

    def _strong(self, images: Tensor, uniforms: Tensor) -> Tensor:
        operation = _whole(uniforms[:, : self.operations].T, len(OPERATIONS))
        magnitude = uniforms[:, self.operations : 2 * self.operations].T
        for layer in _layers(self.range_table, operation, magnitude, *images.shape[-2:]):
            images = _apply(images, layer)
        return cutout(images, uniforms[:, 2 * self.operations :], largest=self.cutout, fill=self.fill)


def _whole(uniforms: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0,1) -> uniform integers in 0..count-1."""
    return (uniforms * count).int()


def _grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each pixel, int32 [h*w]."""
    height, width = images.shape[-2:]
    pixel = torch.arange(height * width, device=images.device, dtype=torch.int32)
    return pixel // width, pixel % width


def _pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixel of each image at every (row, column), both int32 [n,h*w]; black outside the image."""
    channels, height, width = images.shape[1:]
    framed = F.pad(images, (1, 1, 1, 1)).flatten(2)
    rows = rows.clamp(-1, height) + 1
    columns = columns.clamp(-1, width) + 1
    index = (rows * (width + 2) + columns).long()
    return framed.gather(2, index[:, None].expand(-1, channels, -1)).view_as(images)


def _range_table() -> Tensor:
    """`RANGES` as float64 [2,settings,operations]: the value at magnitude 0 and its growth to magnitude 1."""
    table = [
        [ranges.get(setting, (neutral, neutral)) for ranges in RANGES.values()] for setting, neutral in NEUTRAL.items()
    ]
    low, high = torch.tensor(table, dtype=torch.float64).unbind(-1)
    return torch.stack((low, high - low))


def _layers(table: Tensor, operation: Tensor, magnitude: Tensor, height: int, width: int) -> list[Layer]:
    """From operation and magnitude [layers,n]: small work, so all layers share its kernels."""
    low, growth = table[:, :, operation]
    setting = dict(zip(NEUTRAL, low + growth * magnitude, strict=True))

    angle = torch.deg2rad(setting["angle"])
    cos, sin = angle.cos(), angle.sin()
    half_width, half_height = width / 2, height / 2
    # Whole pixels: Pillow rounds a translation in float64, but a rotation or shear in fixed point.
    right = torch.floor(setting["translate_x"] * width + 0.5)
    down = torch.floor(setting["translate_y"] * height + 0.5)
    left_of_centre = half_width - (half_width * cos - half_height * sin)
    top_of_centre = half_height - (half_width * sin + half_height * cos)
    by_column = torch.stack((cos, setting["shear_y"] + sin))
    by_row = torch.stack((setting["shear_x"] - sin, cos))
    start = torch.stack((left_of_centre + right, top_of_centre + down))
    first_pixel = start + 0.5 * by_column + 0.5 * by_row  # its centre
    affine = torch.floor(65536 * torch.stack((by_column, by_row, first_pixel)) + 0.5).int()[..., None]

    setting = {name: value[..., None, None, None] for name, value in setting.items()}
    weights = torch.stack([setting[name] for name in ("factor", "grey", "flat", "smooth")]).float()
    switches = torch.stack((setting["stretch"], setting["equalize"])) > 0
    kept_bits = ((255 << (8 - setting["bits"].int())) & 255).to(torch.uint8)
    threshold = setting["threshold"].float()
    by_layer = zip(affine.unbind(2), weights.unbind(1), switches.unbind(1), kept_bits, threshold, strict=True)
    return [Layer(*fields) for fields in by_layer]


def _apply(images: Tensor, layer: Layer) -> Tensor:
    """Each step leaves a sample whose operation belongs to another step exactly as it is."""
    return _recolor(_blend(_move(images, layer), layer), layer)


def _move(images: Tensor, layer: Layer) -> Tensor:
    """Rotate, shear and translate: one affine map a sample."""
    row, column = _grid(images)
    by_column, by_row, first_pixel = layer.affine
    columns, rows = (by_column * column + (by_row * row + first_pixel)) >> 16
    return _pixels(images, rows, columns)


def _blend(images: Tensor, layer: Layer) -> Tensor:
    """Brightness, color, contrast and sharpness: a mix with a black, grey, flat or smoothed image."""
    factor, grey, flat, smooth = layer.weights
    values = images.float()
    luma = _luma(values)
    mean = luma.double().mean((1, 2, 3), keepdim=True)
    other = flat * torch.floor(mean + 0.5).float() + grey * luma + smooth * _smooth(values)
    return (other + factor * (values - other)).to(torch.uint8)


def _luma(values: Tensor) -> Tensor:
    """Grey by ITU-R 601 in 16 fractional bits; no product or sum reaches 2^24, so float32 is exact."""
    if values.shape[1] == 1:
        return values
    red, green, blue = values.unbind(1)
    return torch.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)[:, None]


def _smooth(values: Tensor) -> Tensor:
    """The mean over each 3x3 neighbourhood, its centre counted five times; the border stays as it is."""
    three_rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    nine = three_rows[..., :-2] + three_rows[..., 1:-1] + three_rows[..., 2:]
    smooth = values.clone()
    smooth[..., 1:-1, 1:-1] = torch.round((nine + 4 * values[..., 1:-1, 1:-1]) / 13)
    return smooth


def _recolor(images: Tensor, layer: Layer) -> Tensor:
    """Auto-contrast, equalize, posterize and solarize: a new level for each level."""
    stretch, equalize = layer.switches
    lowest, highest = (level[..., None] for level in images.flatten(2).aminmax(dim=2, keepdim=True))
    stretch = stretch & (highest > lowest)
    lowest = torch.where(stretch, lowest, 0).double()
    spread = torch.where(stretch, highest - lowest, 255)
    scale = torch.full_like(spread, 255) / spread  # 255 / spread would multiply by a rounded reciprocal
    height, width = images.shape[-2:]
    if height * width > 255:  # with fewer pixels than levels Pillow leaves an image as it is
        images = torch.where(equalize, _equalize(images, highest), images)
    images = (images * scale - lowest * scale).to(torch.uint8)
    images = images & layer.kept_bits
    inverted = (images >= layer.threshold).to(torch.uint8)
    return images ^ (255 * inverted)


def _equalize(images: Tensor, highest: Tensor) -> Tensor:
    """Spread the levels so that each new one holds about as many pixels, channel by channel."""
    levels = images.flatten(2).long()
    one = torch.ones((), dtype=torch.int32, device=images.device)
    # Counting level v at v + 1 makes the running sum at v the number of pixels below v.
    count = torch.zeros(*levels.shape[:2], 257, dtype=torch.int32, device=images.device)
    below = count.scatter_add_(2, levels + 1, one.expand_as(levels)).cumsum(2, dtype=torch.int32)
    step = below.gather(2, highest.flatten(2).long()) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return torch.where(step[..., None] > 0, table.gather(2, levels).view_as(images), images)
