"""Features of images that a linear classifier can tell classes by, from the images alone and in seconds.

Random patches of the images, whitened, are the filters (Coates, Ng and Lee, AISTATS 2011; Coates and Ng, ICML 2011).
Each window of an image has its contrast normalised and is whitened; its product with every filter goes through a soft
threshold, either sign on its own, and is averaged over a grid. All but the normalising of windows is one convolution.

The alternative is a network trained on the labels. Of 500 labelled images of CIFAR-10, those that it has not seen, a
logistic regression on these features gets 49 % right, small_cnn after 400 steps a fold 39 % (means of two draws); of
300 digits both get 97 %. And five folds cost one pass over the images, not five trainings and five passes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_SIDE = 32  # pixels; what is larger is shrunk to this
NUM_FILTERS = 128
NUM_PATCHES = 20_000  # that the whitening is estimated from
NUM_IMAGES = 2_000  # that the patches are cut from
GRID = 3  # cells a side that responses are averaged over
THRESHOLD = 1.0
CONTRAST_FLOOR = 10.0  # added to the variance of a window, in squared grey levels, so that flat ones are not all noise
WHITENING_FLOOR = 0.1  # added to the variance of a direction
IMAGES_AT_A_TIME = 200


def patch_features(
    images: npt.NDArray[np.uint8], rows: npt.NDArray[np.integer], *, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Of these rows of [n, c, h, w], perhaps memory-mapped: [rows, d]. No label is needed."""
    some = np.sort(np.random.default_rng(seed).permutation(rows)[:NUM_IMAGES])
    filters, offset = _whitened_patches(torch.cat(list(_shrunk_batches(images, some))), seed)
    features = [_averaged_responses(batch, filters, offset) for batch in _shrunk_batches(images, rows)]
    array: npt.NDArray[np.float32] = torch.cat(features).numpy()
    return array


def _shrunk_batches(images: npt.NDArray[np.uint8], rows: npt.NDArray[np.integer]) -> Iterator[Tensor]:
    """As float32, 0 to 255."""
    size = tuple(min(side, LARGEST_SIDE) for side in images.shape[2:])
    for batch in np.split(rows, range(IMAGES_AT_A_TIME, len(rows), IMAGES_AT_A_TIME)):
        yield F.adaptive_avg_pool2d(torch.from_numpy(images[batch]).float(), size)


def _whitened_patches(images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Filters [f, c, side, side] for windows of normal contrast, and what to take off their responses, [f]."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = images.shape[1:]
    side = _side(height, width)

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
    """[n, f, side of grid, side of grid] for either sign, flat."""
    stride = 2 if min(images.shape[2:]) >= LARGEST_SIDE // 2 else 1  # a quarter of the time, for no loss seen
    box = torch.full_like(filters[:1], 1 / filters[0].numel())
    mean = F.conv2d(images, box, stride=stride)
    variance = (F.conv2d(images.square(), box, stride=stride) - mean.square()).clamp(min=0)
    from_mean = F.conv2d(images, filters, stride=stride) - mean * filters.sum((1, 2, 3))[:, None, None]
    responses = from_mean / (variance + CONTRAST_FLOOR).sqrt() - offset[:, None, None]
    either_sign = torch.cat([responses - THRESHOLD, -responses - THRESHOLD], dim=1).relu()
    return F.adaptive_avg_pool2d(either_sign, GRID).flatten(1)


def _side(height: int, width: int) -> int:
    """Of a patch: 6 pixels of 32, 3 of 8."""
    return min(height, width, 6, max(3, min(height, width) // 3))
