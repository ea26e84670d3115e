from typing import Any

import numpy as np
import pytest
import torch

from mnar.own_data.inspection.image_probe import Images
from mnar.own_data.portfolio.image_features import (
    NUM_CELLS,
    NUM_DIRECTIONS,
    ImageEncoder,
    gradient_histograms,
    image_inputs,
)
from mnar.own_data.portfolio.linear import fit_linear
from mnar.own_data.portfolio.member import Samples
from mnar.own_data.portfolio.members import NAMES, members_for
from mnar.types import DataSet


def random_images(*shape: int) -> Images:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_a_linear_model_on_150_labelled_digits_classifies_90_percent_of_the_others(digits_data: DataSet) -> None:
    images, truth = digits_data.train_x.numpy()[:600], digits_data.train_y.numpy()[:600]
    inputs, _ = image_inputs(images)
    is_pool = np.arange(600) >= 150
    fitted = fit_linear(Samples(inputs, np.where(is_pool, -1, truth), num_classes=10))
    predicted = fitted.probs(inputs.rows(np.flatnonzero(is_pool))).argmax(1)
    assert (predicted == truth[is_pool]).mean() > 0.9


def test_histograms_equal_a_loop_over_pixels_cells_and_blocks() -> None:
    image = random_images(2, 16, 16).astype(float)  # two channels; cells of 2 x 2 pixels
    grey, cells = image.mean(0), np.zeros((NUM_CELLS, NUM_CELLS, NUM_DIRECTIONS))
    for row in range(16):
        for column in range(16):
            down = grey[row + 1, column] - grey[row - 1, column] if 0 < row < 15 else 0.0
            right = grey[row, column + 1] - grey[row, column - 1] if 0 < column < 15 else 0.0
            number = int(np.arctan2(down, right) % np.pi / np.pi * NUM_DIRECTIONS)
            cells[row // 2, column // 2, min(number, NUM_DIRECTIONS - 1)] += np.hypot(down, right) / 4
    blocks = [
        cells[row : row + 2, column : column + 2].transpose(2, 0, 1).ravel()
        for row in range(NUM_CELLS - 1)
        for column in range(NUM_CELLS - 1)
    ]
    expected = np.stack([block / np.linalg.norm(block) for block in blocks], axis=1).ravel()

    histograms = gradient_histograms(torch.from_numpy(image[None]).float())
    np.testing.assert_allclose(histograms[0].numpy(), expected, atol=1e-5)


def test_an_encoder_made_from_its_arrays_gives_equal_features_of_new_images() -> None:
    images, new = random_images(40, 3, 12, 10), 255 - random_images(7, 3, 12, 10)
    encoder = ImageEncoder.fit(images, seed=3)
    stored = ImageEncoder.from_arrays({name: array.copy() for name, array in encoder.arrays().items()})
    np.testing.assert_array_equal(stored.transform(new), encoder.transform(new))
    assert encoder.transform(new[:0]).shape == (0, encoder.transform(new).shape[1])


def test_an_image_has_the_same_features_alone_and_among_others() -> None:
    images = random_images(430, 1, 8, 8)  # three batches
    encoder = ImageEncoder.fit(images[:100])
    together = encoder.transform(images)
    alone = np.concatenate([encoder.transform(images[[row]]) for row in (0, 199, 200, 429)])
    np.testing.assert_allclose(together[[0, 199, 200, 429]], alone, atol=1e-5)


def test_a_mirror_image_has_the_same_features_only_if_it_has_colours() -> None:
    for channels, is_same in ((3, True), (1, False)):
        images = random_images(30, channels, 16, 16)
        encoder = ImageEncoder.fit(images)
        assert np.allclose(encoder.transform(images), encoder.transform(images[..., ::-1]), atol=1e-4) == is_same


def test_brightness_and_contrast_change_the_features_little() -> None:
    images = random_images(30, 1, 16, 16)
    x = ImageEncoder.fit(images)
    plain, changed = x.transform(images), x.transform((images // 2 + 60).astype(np.uint8))
    cosine = (plain * changed).sum(1) / np.linalg.norm(plain, axis=1) / np.linalg.norm(changed, axis=1)
    assert cosine.min() > 0.98


@pytest.mark.parametrize("shape", [(6, 3, 4, 4), (6, 1, 1, 1), (5, 3, 2, 40), (1, 1, 8, 8)])
def test_tiny_and_constant_images_have_finite_features_that_a_member_can_use(shape: tuple[int, ...]) -> None:
    for images in (random_images(*shape), np.full(shape, 7, np.uint8)):
        inputs, _ = image_inputs(images)
        assert inputs.features.shape[1] >= 1
        assert np.isfinite(inputs.features).all()
        probs = fit_linear(Samples(inputs, np.arange(shape[0]) % 2, num_classes=2)).probs(inputs)
        assert np.isfinite(probs).all()


def test_equal_images_get_equal_probabilities_of_both_classes() -> None:
    inputs, _ = image_inputs(np.full((8, 3, 4, 4), 200, np.uint8))
    probs = fit_linear(Samples(inputs, np.arange(8) % 2, num_classes=2)).probs(inputs)
    np.testing.assert_allclose(probs, 0.5, atol=1e-6)


def test_of_images_on_a_cpu_the_network_is_trained_on_the_labels_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    inputs, _ = image_inputs(random_images(12, 3, 8, 8))
    samples = Samples(inputs, np.array([0, 1, 0, 1, *[-1] * 8]), num_classes=2)
    uses_pool = {member.name: member.uses_pool for member in members_for(samples)}
    assert not uses_pool["network"]
    assert {"linear", "kernel", "graph"} <= set(uses_pool)
    assert {member.name for member in members_for(samples, every=True)} == set(NAMES)


def test_black_and_white_images_without_any_contrast_are_told_apart() -> None:
    is_white = np.arange(12) % 2
    images = np.broadcast_to(255 * is_white.astype(np.uint8)[:, None, None, None], (12, 1, 6, 6))
    inputs, _ = image_inputs(images)
    fitted = fit_linear(Samples(inputs, np.where(np.arange(12) < 6, is_white, -1), num_classes=2))
    np.testing.assert_array_equal(fitted.probs(inputs).argmax(1), is_white)
