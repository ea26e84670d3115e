from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch._subclasses import FakeTensorMode

from mnar.augment import OPERATIONS, Augment, apply_operation, crop_and_flip, cutout

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
SIZES = [(32, 32), (17, 23), (40, 21), (84, 84), (2, 5)]
LAST_BELOW_ONE = 1 - 2**-24
EXTREMES = (0.0, 0.25, 0.5, 0.75, 0.8125, LAST_BELOW_ONE)
CIFAR10 = {"mean": (0.491, 0.482, 0.447), "std": (0.247, 0.244, 0.262)}


def photographs(count: int, height: int, width: int, *, grey: bool = False) -> Tensor:
    """Crops of scikit-learn's two photographs, uint8 [count, channels, height, width]."""
    rng = np.random.default_rng(height * width)
    crops = []
    for number in range(count):
        photograph = load_sample_images().images[number % 2]
        top = rng.integers(photograph.shape[0] - height)
        left = rng.integers(photograph.shape[1] - width)
        crop = Image.fromarray(photograph[top : top + height, left : left + width])
        crops.append(from_pillow(crop.convert("L") if grey else crop))
    return torch.stack(crops)


def digits(count: int) -> Tensor:
    return torch.tensor(load_digits().images[:count] * 255 / 16).to(torch.uint8)[:, None]


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())


def from_pillow(image: Image.Image) -> Tensor:
    return torch.tensor(np.atleast_3d(np.asarray(image))).permute(2, 0, 1)


def pillow_operation(image: Image.Image, operation: str, magnitude: float) -> Image.Image:
    """The oracle: Pillow's own operation, at a magnitude in [0,1) of the range in the specification."""
    factor = 0.05 + (0.95 - 0.05) * magnitude
    share = -0.3 + 0.6 * magnitude
    affine = {
        "shear_x": (1, share, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, share, 1, 0),
        "translate_x": (1, 0, share * image.width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, share * image.height),
    }
    match operation:
        case "identity":
            return image
        case "auto_contrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "brightness" | "color" | "contrast" | "sharpness":
            return getattr(ImageEnhance, operation.capitalize())(image).enhance(factor)
        case "posterize":
            return ImageOps.posterize(image, int(4 + 4 * magnitude))
        case "solarize":
            return ImageOps.solarize(image, 256 * magnitude)
        case "rotate":
            return image.rotate(-30 + 60 * magnitude)
        case _:
            return image.transform(image.size, Image.Transform.AFFINE, affine[operation])


def largest_difference_to_pillow(images: Tensor, operation: str, magnitude: Tensor) -> int:
    code = torch.full((len(images),), OPERATIONS.index(operation))
    ours = apply_operation(images, code, magnitude)
    assert ours.dtype == torch.uint8
    theirs = torch.stack(
        [
            from_pillow(pillow_operation(to_pillow(image), operation, m))
            for image, m in zip(images, magnitude.tolist(), strict=True)
        ]
    )
    return int((ours.int() - theirs.int()).abs().max())


def magnitudes(count: int, seed: int) -> Tensor:
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    return torch.cat((torch.tensor(EXTREMES), drawn))[:count]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_each_operation_on_photographs_equals_pillow(operation: str, height: int, width: int) -> None:
    images = photographs(60, height, width)
    assert largest_difference_to_pillow(images, operation, magnitudes(60, seed=height)) == 0


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_on_grey_images_equals_pillow(operation: str) -> None:
    grey = photographs(40, 28, 28, grey=True)
    assert largest_difference_to_pillow(grey, operation, magnitudes(40, seed=1)) == 0
    assert largest_difference_to_pillow(digits(40), operation, magnitudes(40, seed=2)) == 0


@pytest.mark.parametrize("operation", GEOMETRIC)
def test_geometric_operations_equal_pillow_at_a_thousand_magnitudes(operation: str) -> None:
    images = photographs(2, 32, 32).repeat(500, 1, 1, 1)
    assert largest_difference_to_pillow(images, operation, magnitudes(1000, seed=3)) == 0


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("level", [0, 100, 255])
def test_flat_images_equal_pillow(operation: str, level: int) -> None:
    images = torch.full((6, 3, 20, 20), level, dtype=torch.uint8)
    images[3:, :, 4, 5] = 200  # one pixel that differs
    assert largest_difference_to_pillow(images, operation, magnitudes(6, seed=4)) == 0
