"""The views of `Augment` on a GPU: one draw of uniform numbers and one Triton kernel for each view of a batch.

The pixels and the random draws are the same as those of `Augment` without torch.compile. The kernel compiles in one or
two seconds, once for all batch sizes.
"""

# mypy: allow-untyped-calls
# (Triton has no type stubs)

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mnar.augment.randaugment import RANGES
from mnar.augment.view_kernels import make_view
from mnar.augment.views import Augment

# A program reads and writes this many values at once, with this many values per thread.
TILE, VALUES_PER_THREAD = 1024, 4
LEAST_TILE = 128  # one warp


class FusedViews:
    """Callable like `Augment`. Images that are not on a GPU and contrastive views are left to `Augment` itself."""

    def __init__(self, augment: Augment) -> None:
        self.augment = augment
        self._ranges = magnitude_ranges().to(augment.mean.device)

    def __call__(self, images: Tensor, view: str) -> Tensor:
        """Return a view of uint8 images [n, channels, height, width] in channels-last memory."""
        kind = self.augment.check(images, view)
        if not images.is_cuda or kind == "contrast":  # the kernel does not make contrastive views
            plain: Tensor = self.augment(images, view)
            return plain
        return self.launch(images, kind)

    def launch(self, images: Tensor, kind: str) -> Tensor:
        """Run the kernel without a check of the arguments. `kind` is "id", "weak" or "strong"."""
        augment, images = self.augment, images.contiguous()
        channels, height, width = images.shape[1:]
        views = torch.empty(images.shape, dtype=torch.float32, device=images.device, memory_format=torch.channels_last)
        if not len(views):
            return views
        uniforms = scratch = None
        if kind != "id":
            uniforms = augment.draw(kind, len(views), images.device)
        if kind == "strong":  # two images and a table of 256 levels for each channel
            scratch = images.new_empty(len(views), channels * (2 * height * width + 256))
        tile = min(TILE, max(triton.next_power_of_2(channels * height * width), LEAST_TILE))
        make_view[(len(views),)](
            *(images, uniforms, self._ranges, augment.mean, augment.std, augment.fill, scratch, views),
            STRONG=kind == "strong",
            WEAK=kind != "id",
            WEAK_FIRST=augment.order == "weak_first",
            LAYERS=augment.operations,
            CUTOUT=augment.cutout * width,
            PADDING=augment.padding,
            REFLECT=augment.padding_mode == "reflect",
            FLIP=augment.flip,
            CHANNELS=channels,
            HEIGHT=height,
            WIDTH=width,
            TILE=tile,
            num_warps=max(tile // (32 * VALUES_PER_THREAD), 1),
            enable_fp_fusion=False,  # a product and a sum are rounded separately, as in PyTorch
        )
        return views


def magnitude_ranges() -> Tensor:
    """Return float64 [operations, 2]: the setting that the magnitude changes, at magnitude 0, and its growth to 1.

    The first setting of an operation in `RANGES` is the only one that depends on the magnitude.
    """
    own = [next(iter(ranges.values()), (0.0, 0.0)) for ranges in RANGES.values()]
    low, high = torch.tensor(own, dtype=torch.float64).unbind(-1)
    return torch.stack((low, high - low), dim=1)
