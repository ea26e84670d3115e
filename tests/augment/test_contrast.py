"""The contrastive view, operation by operation against Pillow."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch._subclasses import FakeTensorMode

from mnar.augment import Augment
from mnar.augment.contrast import (
    CONTRAST_DRAWS,
    GREY_SHARE,
    JITTER,
    JITTER_SHARE,
    LARGEST_ASPECT,
    SMALLEST_AREA,
    color_jitter,
    contrast_view,
    resized_crop,
)
from tests.augment.test_views import CIFAR10, digits, from_pillow, photographs, to_pillow

COUNT = 40
LAST_BELOW_ONE = 1 - 2**-24
UNCHANGED = torch.full((COUNT,), 0.5)  # the middle of every range of the colour jitter changes nothing
NEVER = torch.zeros(COUNT, dtype=torch.bool)


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def crop_box(
    image: Image.Image, area: float, shape: float, down: float, right: float
) -> tuple[float, float, float, float]:
    """The part of an image that the draws choose, in pixels: left, top, right, bottom."""
    side, aspect = math.sqrt(SMALLEST_AREA + (1 - SMALLEST_AREA) * area), LARGEST_ASPECT ** (2 * shape - 1)
    width, height = min(1, side * math.sqrt(aspect)), min(1, side / math.sqrt(aspect))
    left, top = right * (1 - width), down * (1 - height)
    return left * image.width, top * image.height, (left + width) * image.width, (top + height) * image.height


@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 23), (8, 8)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_resized_crops_equal_those_of_pillow(height: int, width: int, mirrored: bool) -> None:
    images, draws = photographs(COUNT, height, width), uniforms(4, COUNT)
    draws[:, 0], draws[:, 1] = 0, LAST_BELOW_ONE  # the smallest part and the whole image
    ours = resized_crop(images.float(), *draws, mirrored=torch.full((COUNT,), mirrored))
    for image, crop, draw in zip(images, ours, draws.T.tolist(), strict=True):
        picture = to_pillow(image)
        expected = picture.resize((width, height), Image.Resampling.BILINEAR, crop_box(picture, *draw))
        if mirrored:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        # Pillow rounds twice, once after each direction.
        assert (crop - from_pillow(expected)).abs().max() <= 1.01


def test_the_largest_part_is_the_image_itself() -> None:
    images = photographs(COUNT, 32, 32).float()
    one, middle = torch.full((COUNT,), LAST_BELOW_ONE), torch.full((COUNT,), 0.5)
    whole = resized_crop(images, one, middle, middle, middle, mirrored=NEVER)
    torch.testing.assert_close(whole, images, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("position", "enhance"), [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)]
)
def test_each_colour_change_equals_that_of_pillow(position: int, enhance: type[ImageEnhance._Enhance]) -> None:
    images, amounts = photographs(COUNT, 32, 32), [UNCHANGED] * 4
    amounts[position] = torch.cat([torch.tensor([0.0, LAST_BELOW_ONE]), uniforms(COUNT - 2)])
    ours = color_jitter(images.float(), *amounts)
    for image, changed, amount in zip(images, ours, amounts[position].tolist(), strict=True):
        expected = from_pillow(enhance(to_pillow(image)).enhance(1 + JITTER * (2 * amount - 1)))
        assert (changed - expected).abs().max() <= 1.6  # Pillow rounds the grey levels, too


def test_another_hue_keeps_the_brightness_and_grey_stays_grey() -> None:
    images = photographs(COUNT, 32, 32).float() / 2 + 64  # far from black and white, where values are cut off
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    turned = color_jitter(images, UNCHANGED, UNCHANGED, UNCHANGED, uniforms(COUNT))
    torch.testing.assert_close((luma * turned).sum(1), (luma * images).sum(1), rtol=0, atol=0.05)
    assert (turned - images).abs().amax((1, 2, 3)).gt(1).float().mean() > 0.8
    grey = images.mean(1, keepdim=True).expand_as(images)
    torch.testing.assert_close(
        color_jitter(grey, UNCHANGED, UNCHANGED, UNCHANGED, uniforms(COUNT)), grey, rtol=0, atol=0.05
    )


def test_turning_the_hue_back_gives_the_image() -> None:
    images, there = photographs(COUNT, 32, 32).float() / 4 + 96, uniforms(COUNT)
    turned = color_jitter(images, UNCHANGED, UNCHANGED, UNCHANGED, there)
    back = color_jitter(turned, UNCHANGED, UNCHANGED, UNCHANGED, 1 - there)
    torch.testing.assert_close(back, images, rtol=0, atol=0.1)


def test_the_stated_shares_of_the_views_are_grey_or_keep_their_colours() -> None:
    count = 4000
    images = photographs(1, 8, 8).expand(count, -1, -1, -1)
    draws = uniforms(count, CONTRAST_DRAWS)
    draws[:, :5] = 0.75  # the same part for all, not mirrored
    views = contrast_view(images, draws, flip=True)
    is_grey = (views.amax(1) - views.amin(1)).amax((1, 2)) < 1e-3
    original = contrast_view(
        images[:1], draws[:1].clone().fill_(0.75).index_fill_(1, torch.tensor([5]), 0.9), flip=True
    )
    is_unchanged = (views - original).abs().amax((1, 2, 3)) < 1e-3
    for share, expected in ((is_grey, GREY_SHARE), (is_unchanged, (1 - JITTER_SHARE) * (1 - GREY_SHARE))):
        assert share.float().mean().item() == pytest.approx(expected, abs=4 * math.sqrt(expected / count))


@pytest.mark.parametrize("flip", [False, True])
def test_half_of_the_views_are_mirrored_only_if_the_data_allow_it(flip: bool) -> None:
    images = torch.zeros(400, 1, 8, 8, dtype=torch.uint8)
    images[..., 0] = 255  # a line on the left
    draws = uniforms(400, CONTRAST_DRAWS)
    draws[:, :4] = LAST_BELOW_ONE  # the whole image
    on_the_right = contrast_view(images, draws, flip=flip)[..., -1].mean((1, 2)) > 50
    assert on_the_right.float().mean().item() == pytest.approx(0.5 if flip else 0, abs=0.1)


def test_views_of_grey_images_are_grey_levels() -> None:
    views = contrast_view(digits(COUNT), uniforms(COUNT, CONTRAST_DRAWS), flip=False)
    assert views.shape == (COUNT, 1, 8, 8)
    assert views.min() >= 0
    assert views.max() <= 255


def test_two_views_of_an_image_are_different_draws_and_a_seed_repeats_them() -> None:
    augment, images = Augment(**CIFAR10), photographs(8, 32, 32)
    torch.manual_seed(3)
    first, second = augment(images, "contrast"), augment(images, "contrast2")
    torch.manual_seed(3)
    assert torch.equal(augment(images, "contrast"), first)
    assert (first - second).abs().mean() > 0.1
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_no_value_is_read_back_from_the_device() -> None:
    with FakeTensorMode():
        augment = Augment(**CIFAR10)
        assert augment(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), "contrast").shape == (4, 3, 32, 32)
