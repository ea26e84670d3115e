from __future__ import annotations

import numpy as np

from mnar.own_data.portfolio.member import Inputs, balanced, normalized, with_shares
from tests.support.half_labeled import clouds


def test_balanced_probabilities_with_the_shares_of_the_labels_are_the_original_ones() -> None:
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], 20)
    counts = np.array([50, 7, 1])
    np.testing.assert_allclose(with_shares(balanced(probs, counts), counts / counts.sum()), probs)


def test_a_class_without_rows_gets_no_probability_and_a_row_of_zeros_becomes_uniform() -> None:
    np.testing.assert_allclose(balanced(np.array([[0.5, 0.5, 0.0]]), np.array([3, 1, 0])), [[0.25, 0.75, 0]])
    np.testing.assert_allclose(normalized(np.array([[0.0, 0.0], [1.0, 3.0]])), [[0.5, 0.5], [0.25, 0.75]])


def test_samples_without_some_labels_have_them_in_the_pool() -> None:
    samples = clouds((3, 2), 4)
    fewer = samples.without_labels(np.array([0, 4]))
    assert fewer.counts.tolist() == [2, 1]
    assert len(fewer.pool_features) == 6
    assert samples.counts.tolist() == [3, 2]
    assert fewer.shared is samples.shared


def test_selected_rows_keep_images_and_numbers_together() -> None:
    images = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
    inputs = Inputs(np.arange(4, dtype=np.float32)[:, None], images, np.arange(4)).rows(np.array([2, 0]))
    assert inputs.images is not None
    assert inputs.training_rows is not None
    assert inputs.features.ravel().tolist() == inputs.images.ravel().tolist() == inputs.training_rows.tolist() == [2, 0]
