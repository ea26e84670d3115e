from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from mnar.own_data.inspection.image_probe import (
    CONTRAST_FLOOR,
    GRID,
    LARGEST_SIDE,
    NUM_FILTERS,
    THRESHOLD,
    _averaged_responses,
    _whitened_patches,
    patch_features,
)
from mnar.own_data.inspection.inspection import _logistic_regression
from mnar.own_data.inspection.probe import out_of_fold
from mnar.types import DataSet

NUM_FEATURES = 2 * NUM_FILTERS * GRID**2


def test_a_linear_model_on_patch_features_classifies_90_percent_of_unseen_digits(digits_data: DataSet) -> None:
    images, y = digits_data.train_x.numpy(), digits_data.train_y.numpy()[:300]
    features = patch_features(images, np.arange(300))
    predictions = out_of_fold(_logistic_regression, features, y, features[:0])
    assert (predictions.probs_labeled.argmax(1) == y).mean() > 0.9


def test_one_convolution_equals_normalising_and_multiplying_every_window() -> None:
    images = torch.randint(0, 256, (3, 3, 12, 10), generator=torch.Generator().manual_seed(0)).float()
    filters, offset = _whitened_patches(images, seed=0)
    side = filters.shape[-1]

    windows = F.unfold(images, side).transpose(1, 2)
    windows = windows - windows.mean(2, keepdim=True)
    windows = windows / (windows.square().mean(2, keepdim=True) + CONTRAST_FLOOR).sqrt()
    responses = (windows @ filters.flatten(1).T - offset).transpose(1, 2)
    responses = responses.unflatten(2, (12 - side + 1, 10 - side + 1))
    either_sign = torch.cat([(responses - THRESHOLD).relu(), (-responses - THRESHOLD).relu()], dim=1)
    expected = F.adaptive_avg_pool2d(either_sign, GRID).flatten(1)

    torch.testing.assert_close(_averaged_responses(images, filters, offset), expected, atol=1e-3, rtol=1e-3)


def test_a_row_has_the_same_features_wherever_it_is_asked_for(digits_data: DataSet) -> None:
    images = digits_data.train_x.numpy()[:500]
    rows = np.random.default_rng(0).permutation(500)
    straight, shuffled = patch_features(images, np.arange(500)), patch_features(images, rows)
    assert straight.shape == (500, NUM_FEATURES)
    np.testing.assert_allclose(shuffled, straight[rows], atol=1e-4)


def test_larger_images_are_shrunk_first() -> None:
    small = np.random.default_rng(0).integers(0, 256, (4, 3, LARGEST_SIDE, LARGEST_SIDE), np.uint8)
    large = small.repeat(3, axis=2).repeat(3, axis=3)
    rows = np.arange(4)
    np.testing.assert_allclose(patch_features(large, rows), patch_features(small, rows), atol=1e-4)


def test_tiny_grey_and_blank_images_have_finite_features() -> None:
    for shape in ((2, 1, 4, 4), (2, 3, 2, 40), (1, 1, 1, 1)):
        features = patch_features(np.zeros(shape, np.uint8), np.arange(shape[0]))
        assert features.shape == (shape[0], NUM_FEATURES)
        assert np.isfinite(features).all()


def test_memory_mapped_images_that_may_not_be_written_are_read(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    rows = np.array([4, 0, 2])
    np.testing.assert_array_equal(patch_features(mapped, rows), patch_features(images, rows))
