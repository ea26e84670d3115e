"""Image features for a linear classifier, computed in seconds from the images alone.

The filters are random patches of the images, whitened (Coates, Ng and Lee, AISTATS 2011; Coates and Ng, ICML 2011).
Each window of an image is normalised in contrast and whitened, and multiplied with every filter. The products go
through a soft threshold, separately for each sign, and are averaged over a grid.

The alternative is a network trained on the labels. With 500 labelled images of CIFAR-10, a logistic regression on these
features has an out-of-fold accuracy of 49 %, and small_cnn after 400 steps per fold has 39 % (means of two draws). With
300 digits both have 97 %. In addition, these features need one pass over the images for all five folds, instead of five
trainings and five passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_SIDE = 32  # pixels; larger images are shrunk to this side
NUM_FILTERS = 128
NUM_PATCHES = 20_000  # patches from which the whitening is estimated
NUM_IMAGES = 2_000  # images from which the patches are cut
GRID = 3  # cells per side of the grid over which responses are averaged
THRESHOLD = 1.0
CONTRAST_FLOOR = 10.0  # squared grey levels, added to the variance of a window; it limits the noise of flat windows
WHITENING_FLOOR = 0.1  # added to the variance of each direction before whitening
IMAGES_AT_A_TIME = 200
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PatchFilters:
    """Filters that were cut from images, and that compute features of any images of the same size and channels."""

    filters: Tensor  # [f, c, side, side]
    offset: Tensor  # [f] is subtracted from the responses

    @classmethod
    def fit(cls, images: Images, rows: npt.NDArray[np.integer], *, seed: int = 0) -> Self:
        """Cut the filters from the given rows of `images` [n, c, h, w], which may be memory-mapped."""
        some = np.sort(np.random.default_rng(seed).permutation(rows)[:NUM_IMAGES])
        return cls(*_whitened_patches(torch.cat(list(_shrunk_batches(images, some))), seed))

    def features(self, images: Images, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Return features [rows, d] of the given rows of `images`."""
        parts = [_averaged_responses(batch, self.filters, self.offset) for batch in _shrunk_batches(images, rows)]
        array: npt.NDArray[np.float32] = torch.cat(parts).numpy()
        return array

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays from which `from_arrays` makes equal filters."""
        return {"filters": self.filters.numpy(), "offset": self.offset.numpy()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the filters whose `arrays()` are given."""
        return cls(torch.tensor(arrays["filters"]), torch.tensor(arrays["offset"]))


def patch_features(images: Images, rows: npt.NDArray[np.integer], *, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return features [rows, d] of the given rows of `images` [n, c, h, w], which may be memory-mapped."""
    return PatchFilters.fit(images, rows, seed=seed).features(images, rows)


def _shrunk_batches(images: Images, rows: npt.NDArray[np.integer]) -> Iterator[Tensor]:
    """Yield batches of the rows as float32 in 0 to 255, shrunk to LARGEST_SIDE where they are larger."""
    size = tuple(min(side, LARGEST_SIDE) for side in images.shape[2:])
    for batch in np.split(rows, range(IMAGES_AT_A_TIME, len(rows), IMAGES_AT_A_TIME)):
        yield F.adaptive_avg_pool2d(torch.from_numpy(images[batch]).float(), size)


def _whitened_patches(images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return filters [f, c, side, side] for windows of normalised contrast, and offsets [f] of their responses."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = images.shape[1:]
    side = _patch_side(height, width)

    def draw(count: int) -> Tensor:
        return torch.randint(count, (NUM_PATCHES, 1, 1, 1), generator=generator)

    image, top, left = draw(len(images)), draw(height - side + 1), draw(width - side + 1)
    channel, row, column = torch.meshgrid(torch.arange(channels), torch.arange(side), torch.arange(side), indexing="ij")
    patches = images[image, channel, top + row, left + column].flatten(1)
    patches = patches - patches.mean(1, keepdim=True)
    patches = patches / (patches.square().mean(1, keepdim=True) + CONTRAST_FLOOR).sqrt()

    mean = patches.mean(0)
    centred = patches - mean
    variance, directions = torch.linalg.eigh(centred.T @ centred / NUM_PATCHES)
    whitening = directions / (variance + WHITENING_FLOOR).sqrt() @ directions.T
    filters = F.normalize(centred[:NUM_FILTERS] @ whitening) @ whitening
    return filters.unflatten(1, (channels, side, side)), filters @ mean


def _averaged_responses(images: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    """Return the averaged responses of both signs, flat: [n, 2 * f * GRID * GRID]."""
    # Stride 2 takes a quarter of the time, without a measured loss.
    stride = 2 if min(images.shape[2:]) >= LARGEST_SIDE // 2 else 1
    side = filters.shape[2]
    num_rows, num_columns = ((length - side) // stride + 1 for length in images.shape[2:])
    windows = F.unfold(images, side, stride=stride)  # [n, pixels of a window, windows]
    # The windows are centred before they are squared. The mean of the squares minus the square of the mean loses so
    # many digits in flat windows that features of enlarged digits differed by 5e-4 from those in double precision.
    windows = windows - windows.mean(1, keepdim=True)
    contrast = (windows.square().mean(1, keepdim=True) + CONTRAST_FLOOR).sqrt()
    responses = (filters.flatten(1) @ windows / contrast - offset[:, None]).unflatten(2, (num_rows, num_columns))
    either_sign = torch.cat([responses - THRESHOLD, -responses - THRESHOLD], dim=1).relu()
    return F.adaptive_avg_pool2d(either_sign, GRID).flatten(1)


def _patch_side(height: int, width: int) -> int:
    """Return the side of a patch in pixels: 6 for images of 32 pixels, 3 for images of 8."""
    return min(height, width, 6, max(3, min(height, width) // 3))
