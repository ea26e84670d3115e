"""The operations of RandAugment (Cubuk et al., 2020) on whole batches, in Pillow's arithmetic.

Each sample of a batch has its own operation. Operations of one kind share their kernels: all geometric operations are
one affine map of pixels, brightness, color, contrast and sharpness are one blend with another image, and the others
are one map of grey levels. A step leaves a sample unchanged if the operation of the sample is of another kind.

A GPU computes every step for all samples, because it must not wait for the host. A CPU sorts the samples by operation
and computes each formula only for the samples that need it, unless the batch is small. The pixels are the same.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NEUTRAL = {  # all parameters of a sample, with the values that change nothing
    "angle": 0.0,  # degrees
    "shear_x": 0.0,
    "shear_y": 0.0,
    "translate_x": 0.0,  # share of the width
    "translate_y": 0.0,  # share of the height
    "factor": 1.0,  # share of the image in a blend with black, or with the image that one of the next three selects
    "grey": 0.0,  # 1: blend with the grey image
    "flat": 0.0,  # 1: blend with a flat image of the mean grey level
    "smooth": 0.0,  # 1: blend with the smoothed image
    "stretch": 0.0,  # 1: stretch the contrast
    "equalize": 0.0,  # 1: equalize the histogram
    "bits": 8.0,  # bits that posterize keeps
    "threshold": 256.0,  # solarize inverts levels from here on
}
RANGES: dict[str, dict[str, tuple[float, float]]] = {  # parameters that an operation sets, at magnitude 0 and at 1
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
SORTS_FROM = 2**15  # values of a batch; sorting a smaller one takes longer than it saves (224 digits: 14,336 values)
KINDS: dict[str, tuple[str, ...]] = {  # operations with the same formula, in the order in which a CPU sorts them
    "move": ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
    "black": ("brightness",),  # this kind and the next three are blends with another image
    "grey": ("color",),
    "flat": ("contrast",),
    "smooth": ("sharpness",),
    "stretch": ("auto_contrast",),
    "equalize": ("equalize",),
    "posterize": ("posterize",),
    "solarize": ("solarize",),
    "same": ("identity",),
}
KIND_OF_OPERATION = torch.tensor(
    [next(code for code, kind in enumerate(KINDS.values()) if operation in kind) for operation in OPERATIONS]
)


class Layer(NamedTuple):
    """One operation for each sample, as tensors for images of a given size."""

    affine: Tensor  # int32 [3,2,n,1]: affine map to the source (column, row) of a pixel, in 1/65536
    weights: Tensor  # float32 [4,n,1,1,1]: factor, grey, flat, smooth
    switches: Tensor  # bool [2,n,1,1,1]: stretch, equalize
    kept_bits: Tensor  # uint8 [n,1,1,1]
    threshold: Tensor  # float32 [n,1,1,1]


def apply_operation(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Apply one operation to each sample.

    images       uint8 [n,c,h,w]
    operation    int64 [n], positions in `OPERATIONS`
    magnitude    float32 [n] in [0,1), mapped linearly to the operation's range in `RANGES`
    """
    return apply_operations(images, range_table().to(images.device), operation[None], magnitude[None])


def apply_operations(images: Tensor, table: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Apply the operations of each sample in turn: one per row of `operation` and `magnitude`, both [layers,n].

    `table` is `range_table()` on the device of the images.
    """
    size = images.shape[-2:]
    if images.numel() < SORTS_FROM or not _has_values_on_host(images):
        for layer in layers(table, operation, magnitude, *size):
            images = apply_layer(images, layer)
        return images
    kind, order = KIND_OF_OPERATION[operation.long()].sort(dim=1)
    in_order = layers(table, operation.gather(1, order), magnitude.gather(1, order), *size)
    for layer, rows, kinds in zip(in_order, order, kind, strict=True):
        changed = _apply_sorted(images[rows], layer, kinds.bincount(minlength=len(KINDS)).tolist())
        images = torch.empty_like(images).index_copy_(0, rows, changed)
    return images


def _has_values_on_host(images: Tensor) -> bool:
    """Whether Python may branch on values: not on a GPU, under torch.compile, or for a FakeTensor, which has none."""
    return images.device.type == "cpu" and type(images) is Tensor and not torch.compiler.is_compiling()


def range_table() -> Tensor:
    """Return `RANGES` as float64 [operations,2,parameters]: the value at magnitude 0 and its growth to magnitude 1."""
    neutral = {setting: (value, value) for setting, value in NEUTRAL.items()}
    table = [list((neutral | ranges).values()) for ranges in RANGES.values()]
    low, high = torch.tensor(table, dtype=torch.float64).unbind(-1)
    return torch.stack((low, high - low), dim=1)


def layers(table: Tensor, operation: Tensor, magnitude: Tensor, height: int, width: int) -> list[Layer]:
    """Return one `Layer` per row of `operation` and `magnitude`, both [layers,n].

    All layers are computed together because the tensors are small and each kernel launch costs time.
    """
    low, growth = table[operation].unbind(-2)
    settings = low + growth * magnitude[..., None]
    setting = dict(zip(NEUTRAL, settings.unbind(-1), strict=True))

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


def apply_layer(images: Tensor, layer: Layer) -> Tensor:
    """Apply a layer. Each step leaves a sample exactly unchanged if the sample's operation belongs to another step."""
    return _recolor(_blend(_move(images, layer.affine), layer.weights), layer)


def _apply_sorted(images: Tensor, layer: Layer, sizes: list[int]) -> Tensor:
    """Apply a layer to samples that are sorted by kind. `sizes` has the number of samples of each kind in `KINDS`."""
    ends = accumulate(sizes)
    rows = {kind: slice(end - size, end) for kind, size, end in zip(KINDS, sizes, ends, strict=True)}
    of = {kind: images[chosen] for kind, chosen in rows.items()}
    blended = slice(rows["black"].start, rows["smooth"].stop)
    black, grey, flat, smooth = (of[kind].float() for kind in ("black", "grey", "flat", "smooth"))
    other = torch.cat(
        (torch.zeros_like(black), _luma(grey).expand_as(grey), _flat(_luma(flat)).expand_as(flat), _smooth(smooth))
    )
    to_stretch = of["stretch"].double()
    highest = of["equalize"].amax((2, 3), keepdim=True)
    changed = (
        _move(of["move"], layer.affine[:, :, rows["move"]]),
        _mix(images[blended].float(), other, layer.weights[0, blended]),
        _stretch(to_stretch, to_stretch.amax((2, 3), keepdim=True), layer.switches[0, rows["stretch"]]),
        _equalize(of["equalize"], highest, layer.switches[1, rows["equalize"]]),
        of["posterize"] & layer.kept_bits[rows["posterize"]],
        _solarize(of["solarize"], layer.threshold[rows["solarize"]]),
        of["same"],
    )
    return torch.cat(changed)


def _move(images: Tensor, affine: Tensor) -> Tensor:
    """Rotate, shear and translate: one affine map per sample."""
    row, column = grid(images)
    by_column, by_row, first_pixel = affine.unbind(0)
    place = (by_column * column + (by_row * row + first_pixel)) >> 16
    columns, rows = place.unbind(0)
    return pixels_at(images, rows, columns)


def _blend(images: Tensor, weights: Tensor) -> Tensor:
    """Change brightness, color, contrast or sharpness by a blend with a black, grey, flat or smoothed image."""
    factor, grey, flat, smooth = weights.unbind(0)
    values = images.float()
    luma = _luma(values)
    other = flat * _flat(luma) + grey * luma + smooth * _smooth(values)
    return _mix(values, other, factor)


def _mix(values: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return the share `factor` of the values and the rest of the other image."""
    return (other + factor * (values - other)).to(torch.uint8)


def _flat(luma: Tensor) -> Tensor:
    """Return the mean grey level of each image."""
    mean = luma.sum((1, 2, 3), keepdim=True, dtype=torch.float64) / luma.shape[-2:].numel()
    return torch.floor(mean + 0.5).float()


def _luma(values: Tensor) -> Tensor:
    """Return grey levels by ITU-R 601 in 16 fractional bits. No number reaches 2^24, so float32 is exact."""
    if values.shape[1] == 1:
        return values
    red, green, blue = values.unbind(1)
    return torch.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)[:, None]


def _smooth(values: Tensor) -> Tensor:
    """Return the mean over each 3x3 neighbourhood, with the centre counted five times; border pixels do not change."""
    three_rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    nine = three_rows[..., :-2] + three_rows[..., 1:-1] + three_rows[..., 2:]
    smooth = values.clone()
    smooth[..., 1:-1, 1:-1] = torch.round((nine + 4 * values[..., 1:-1, 1:-1]) / 13)
    return smooth


def _recolor(images: Tensor, layer: Layer) -> Tensor:
    """Auto-contrast, equalize, posterize or solarize: map each grey level to a new level."""
    stretch, equalize = layer.switches.unbind(0)
    values = images.double()  # torch 2.13, compiled for a CPU, computes a wrong minimum of uint8
    highest = values.amax((2, 3), keepdim=True)
    images = _stretch(values, highest, stretch)
    images = _equalize(images, highest, equalize)
    return _solarize(images & layer.kept_bits, layer.threshold)


def _stretch(values: Tensor, highest: Tensor, chosen: Tensor) -> Tensor:
    """Stretch the contrast of the chosen images: the levels of each channel then reach from 0 to 255."""
    lowest = values.amin((2, 3), keepdim=True)
    chosen = chosen & (highest > lowest)
    lowest = torch.where(chosen, lowest, 0)
    spread = torch.where(chosen, highest - lowest, 255)
    scale = torch.full_like(spread, 255) / spread  # 255 / spread would multiply by a rounded reciprocal
    return (values * scale - lowest * scale).to(torch.uint8)


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels from the threshold on."""
    inverted = (images >= threshold).to(torch.uint8)
    return images ^ (255 * inverted)


def _equalize(images: Tensor, highest: Tensor, chosen: Tensor) -> Tensor:
    """Equalize the histograms of the chosen images: every new level of a channel has about the same number of pixels.

    `highest` is the highest level of each channel.
    """
    if images.shape[-2:].numel() <= 255:  # Pillow does not change an image with fewer pixels than levels
        return images
    levels = images.flatten(2).long()
    one = torch.ones((), dtype=torch.int32, device=images.device)
    # Counting level v at v + 1 makes the running sum at v the number of pixels below v.
    count = torch.zeros(*levels.shape[:2], 257, dtype=torch.int32, device=images.device)
    below = count.scatter_add_(2, levels + 1, one.expand_as(levels)).cumsum(2, dtype=torch.int32)
    step = below.gather(2, highest.flatten(2).long()) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return torch.where(chosen & (step[..., None] > 0), table.gather(2, levels).view_as(images), images)


def grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each pixel, int32 [h*w]."""
    height, width = images.shape[-2:]
    pixel = torch.arange(height * width, device=images.device, dtype=torch.int32)
    return pixel // width, pixel % width


def pixels_at(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels of each image at the given rows and columns, int32 [n,h*w]; black outside the image."""
    channels, height, width = images.shape[1:]
    framed = F.pad(images, (1, 1, 1, 1)).flatten(2)
    rows = rows.clamp(-1, height) + 1
    columns = columns.clamp(-1, width) + 1
    index = (rows * (width + 2) + columns).long()
    return framed.gather(2, index[:, None].expand(-1, channels, -1)).view_as(images)
