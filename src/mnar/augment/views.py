"""Weak and strong views of whole image batches on their device, with a separate random draw for each sample.

Every random decision is a pure function of uniform numbers that are drawn once per view. So a view can be tested,
compiled, captured in a CUDA graph, and repeated from a saved state of the generator. A strong view is RandAugment
(Cubuk et al., 2020) as in FixMatch: operations drawn with replacement, each with a uniform magnitude, then one cutout.
The operations follow Pillow's arithmetic; the tests compare them pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.augment.contrast import CONTRAST_DRAWS, contrast_view
from mnar.augment.randaugment import OPERATIONS, apply_operation, apply_operations, grid, pixels_at, range_table
from mnar.option_values import Range, Share, checked_options

__all__ = ["OPERATIONS", "Augment", "Standardize", "apply_operation", "crop_and_flip", "cutout"]

VIEWS = ("id", "weak", "strong", "contrast")
TABLE_VIEWS = ("id", "weak", "marginal")

CROP_DRAWS = 3  # uniform numbers per sample: flip, shift down, shift right
CUTOUT_DRAWS = 3  # uniform numbers per sample: side, column of the centre, row of the centre
CUTOUT_COLORS = {1: (123,), 3: (125, 123, 114)}  # by number of channels


def kind_of(view: str) -> str:
    """Return the kind of a view: "weak" for "weak2", which is a second draw of the weak view."""
    return view.rstrip("0123456789")


def kinds_of(labeled_view: str) -> tuple[str, ...]:
    """Return the kinds of view of the labelled samples: "both" is a weak view and a strong view of each sample."""
    return ("weak", "strong") if labeled_view == "both" else (labeled_view,)


def crop_and_flip(images: Tensor, uniforms: Tensor, *, padding: int, padding_mode: str, flip: bool) -> Tensor:
    """Mirror half of the images if `flip` is set, pad every image by `padding` pixels, and crop it at random.

    A crop has the size of the image. Cropping before mirroring would give the same distribution, so there is only this
    order.
    """
    height, width = images.shape[-2:]
    check_padding(padding, padding_mode, height, width)
    mirrored, down, right = uniforms[:, :, None].unbind(1)
    row, column = grid(images)
    rows = row + (_whole(down, 2 * padding + 1) - padding)
    columns = column + (_whole(right, 2 * padding + 1) - padding)
    if flip:
        columns = torch.where(mirrored < 0.5, width - 1 - columns, columns)
    if padding_mode == "reflect":
        rows = height - 1 - (height - 1 - rows.abs()).abs()
        columns = width - 1 - (width - 1 - columns.abs()).abs()
    return pixels_at(images, rows, columns)


def check_padding(padding: int, padding_mode: str, height: int, width: int) -> None:
    """Refuse a padding for which the images are too small."""
    if padding_mode == "reflect" and padding >= min(height, width):
        raise ValueError(
            f"reflect padding of {padding} pixels needs larger images than {height}x{width}; "
            "use a smaller padding or padding_mode='zero'"
        )


def cutout(images: Tensor, uniforms: Tensor, *, largest: float = 0.5, fill: Tensor) -> Tensor:
    """Paint one square in the colour `fill` (uint8 [c]); its side is at most `largest` of the width.

    The centre is uniform over the image. A square that would cross the top or left edge is shifted inside; at the
    bottom or right edge it is cut off. The pixels at both ends are painted, as in Pillow's rectangle.
    """
    height, width = images.shape[-2:]
    side, across, down = uniforms.double()[:, :, None].unbind(1)
    side = largest * width * side
    left = (width * across - side / 2).clamp(min=0).floor()
    top = (height * down - side / 2).clamp(min=0).floor()
    row = torch.arange(height, device=images.device, dtype=torch.float64)
    column = torch.arange(width, device=images.device, dtype=torch.float64)
    in_rows = (row >= top) & (row <= top + side) & (side > 0)
    in_columns = (column >= left) & (column <= left + side)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]
    return torch.where(inside, fill[:, None, None], images)


class Augment(nn.Module):
    """Views of uint8 image batches, normalised to float32 in channels-last memory.

    Views are "id" (normalised only), "weak" (crop and flip), "strong" (crop and flip, RandAugment and cutout) and
    "contrast" (augment/contrast.py). A trailing number, as in "strong2", means another independent draw.

    mean, std       per channel, for values in 0..1: one value for grey images, three for colour images
    padding         largest shift of the crop, in pixels
    padding_mode    "zero" (black) or "reflect": what fills the padding
    flip            whether half of the images are mirrored
    operations      number of RandAugment operations
    cutout          largest side of the cutout, as a share of the width
    order           "strong_first": RandAugment and cutout, then crop and flip (CIFAR); "weak_first": the reverse order
                    (mini-ImageNet, with padding=10 and padding_mode="reflect")
    """

    mean: Tensor
    std: Tensor
    fill: Tensor
    range_table: Tensor

    @checked_options
    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        padding: Annotated[int, Range(0, 10**4)] = 4,
        padding_mode: Literal["zero", "reflect"] = "zero",
        flip: bool = True,
        operations: Annotated[int, Range(0, 100)] = 3,
        cutout: Share = 0.5,
        order: Literal["strong_first", "weak_first"] = "strong_first",
    ) -> None:
        super().__init__()
        if len(mean) not in CUTOUT_COLORS or len(mean) != len(std):
            raise ValueError(f"got {len(mean)} means and {len(std)} stds; give 1 of each (grey) or 3 (colour)")
        if min(std) <= 0:
            raise ValueError(f"std is {tuple(std)}; it must be positive in every channel. Use 1 for a constant channel")
        self.padding = padding
        self.padding_mode = padding_mode
        self.flip = flip
        self.operations = operations
        self.cutout = cutout
        self.order = order
        # In grey levels 0..255, so that normalisation is one subtraction and one division.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(-1, 1, 1), persistent=False)
        fill = torch.tensor(CUTOUT_COLORS[len(mean)], dtype=torch.uint8)
        self.register_buffer("fill", fill, persistent=False)
        self.register_buffer("range_table", range_table(), persistent=False)

    def forward(self, images: Tensor, view: str) -> Tensor:
        """Return a view of uint8 images [n, channels, height, width] as float32 of the same shape."""
        kind = self.check(images, view)
        if kind == "weak":
            images = self._weak(images, self.draw(kind, len(images), images.device))
        elif kind == "strong":
            uniforms = self.draw(kind, len(images), images.device)
            strong, weak = uniforms[:, :-CROP_DRAWS], uniforms[:, -CROP_DRAWS:]
            if self.order == "strong_first":
                images = self._weak(self._strong(images, strong), weak)
            else:
                images = self._strong(self._weak(images, weak), strong)
        elif kind == "contrast":
            images = contrast_view(images, self.draw(kind, len(images), images.device), flip=self.flip)
        normalised = (images.float() - self.mean) / self.std
        return normalised.contiguous(memory_format=torch.channels_last)

    def check(self, images: Tensor, view: str) -> str:
        """Return the kind of the view. Refuse unknown views and images that are not suitable."""
        kind = kind_of(view)
        if kind not in VIEWS:
            raise ValueError(f"unknown view {view!r}; choose from {VIEWS}, or another draw such as 'weak2'")
        channels = len(self.fill)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(
                f"the images are {images.dtype} {list(images.shape)}; "
                f"they must be uint8 [n, {channels}, height, width]. Convert them first"
            )
        if kind != "id":
            check_padding(self.padding, self.padding_mode, *images.shape[-2:])
        return kind

    def draw(self, kind: str, count: int, device: torch.device) -> Tensor:
        """Draw the uniform numbers of `count` views, float32 [count, draws]. The last ones are those of the crop.

        Every process draws the numbers of all processes, so that their generators stay equal.
        """
        draws = {
            "weak": CROP_DRAWS,
            "strong": 2 * self.operations + CUTOUT_DRAWS + CROP_DRAWS,
            "contrast": CONTRAST_DRAWS,
        }[kind]
        whole = distributed.num_parts() * count
        return distributed.own_rows(torch.rand(whole, draws, device=device, dtype=torch.float32))

    def _weak(self, images: Tensor, uniforms: Tensor) -> Tensor:
        return crop_and_flip(images, uniforms, padding=self.padding, padding_mode=self.padding_mode, flip=self.flip)

    def _strong(self, images: Tensor, uniforms: Tensor) -> Tensor:
        operation = _whole(uniforms[:, : self.operations].T, len(OPERATIONS))
        magnitude = uniforms[:, self.operations : 2 * self.operations].T
        images = apply_operations(images, self.range_table, operation, magnitude)
        return cutout(images, uniforms[:, 2 * self.operations :], largest=self.cutout, fill=self.fill)


class Standardize(nn.Module):
    """Views of table rows, standardised. A table has no strong view.

    "id" and "weak" are the rows themselves. "marginal" is a random row: each cell is drawn from the same column of the
    table `rows`, independently of the other cells.
    """

    mean: Tensor
    std: Tensor
    rows: Tensor | None

    def __init__(self, mean: Sequence[float], std: Sequence[float], rows: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, rows: Tensor, view: str) -> Tensor:
        """Return a view of rows [n, features] as float32 of the same shape."""
        if view not in TABLE_VIEWS:
            raise ValueError(
                f"a table has no {view!r} view, only {list(TABLE_VIEWS)}; "
                "choose a learner that needs no strong views, e.g. --learner supervised"
            )
        if view == "marginal":
            rows = self._marginal(rows)
        standardized: Tensor = (rows - self.mean) / self.std
        return standardized

    def _marginal(self, rows: Tensor) -> Tensor:
        if self.rows is None:
            raise ValueError(
                "the 'marginal' view draws from the whole table; give the table: Standardize(mean, std, rows)"
            )
        count = distributed.num_parts() * len(rows)  # every process draws for all, so that their generators stay equal
        donor = torch.randint(len(self.rows), (count, *rows.shape[1:]), device=rows.device)
        return self.rows.gather(0, distributed.own_rows(donor))


def _whole(uniforms: Tensor, count: int) -> Tensor:
    """Turn uniform numbers in [0,1) into uniform integers in 0..count-1."""
    return (uniforms * count).int()
