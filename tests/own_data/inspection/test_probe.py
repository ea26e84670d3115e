from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data.inspection.probe import gradient_boosting, out_of_fold, stratified_folds


class Witness:
    """A classifier that is sure of the rows it was fitted to, and undecided elsewhere. A row is its own number."""

    def fit(self, x: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> Witness:
        self.classes_ = np.unique(y)
        self.class_of = dict(zip(x[:, 0].tolist(), y.tolist(), strict=True))
        return self

    def predict_proba(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        undecided = np.full((len(x), len(self.classes_)), 1 / len(self.classes_))
        for row, number in enumerate(x[:, 0].tolist()):
            if number in self.class_of:
                undecided[row] = self.classes_ == self.class_of[number]
        return undecided


def numbered(start: int, count: int) -> npt.NDArray[np.int64]:
    return np.arange(start, start + count)[:, None]


def test_each_labelled_row_is_predicted_by_the_one_model_that_has_not_seen_it() -> None:
    y = np.repeat([0, 1, 2], 20)
    of_labeled = out_of_fold(Witness, numbered(0, 60), y, numbered(100, 7))
    np.testing.assert_allclose(of_labeled.probs_labeled, 1 / 3)
    # the labelled rows again, as if they were the pool: all models but one know each
    as_pool = out_of_fold(Witness, numbered(0, 60), y, numbered(0, 60)).probs_pool
    knows = as_pool[:, np.arange(60), y] == 1
    assert as_pool.shape == (5, 60, 3)
    assert as_pool.dtype == np.float32
    assert np.array_equal(knows, np.arange(5)[:, None] != of_labeled.fold)


@pytest.mark.parametrize("counts", [(1, 2, 3, 40), (7, 7), (1, 1, 1), (2, 103)])
def test_folds_share_out_each_class_and_all_rows_to_within_one(counts: Sequence[int]) -> None:
    y = np.repeat(np.arange(len(counts)), counts)
    for seed in range(10):
        fold = stratified_folds(y, 5, seed)
        for rows in (y >= 0, *(y == c for c in range(len(counts)))):
            assert np.ptp(np.bincount(fold[rows], minlength=5)) <= 1


def test_folds_differ_by_seed_and_not_otherwise() -> None:
    y = np.repeat([0, 1], 30)
    assert np.array_equal(stratified_folds(y, 5, 1), stratified_folds(y, 5, 1))
    assert not np.array_equal(stratified_folds(y, 5, 1), stratified_folds(y, 5, 2))


def test_a_class_has_probability_0_in_a_model_that_is_trained_without_its_labels() -> None:
    y = np.array([0] * 10 + [2])
    result = out_of_fold(Witness, numbered(0, 11), y, numbered(100, 4), num_classes=4)
    holds_it_out = result.fold[10]
    assert result.num_classes == 4
    assert np.array_equal(result.probs_labeled[10], [1, 0, 0, 0])
    assert (result.probs_pool[holds_it_out] == [1, 0, 0, 0]).all()
    others = np.delete(result.probs_pool, holds_it_out, axis=0)
    np.testing.assert_allclose(others, np.broadcast_to([0.5, 0, 0.5, 0], others.shape))


def test_two_labels_are_two_folds_that_each_know_one_class() -> None:
    result = out_of_fold(gradient_boosting, numbered(0, 2), np.array([0, 1]), numbered(100, 3))
    assert np.array_equal(result.probs_labeled, [[0, 1], [1, 0]])
    assert sorted(result.probs_pool[:, 0].tolist()) == [[0, 1], [1, 0]]


def test_one_label_is_too_few() -> None:
    with pytest.raises(ValueError, match=r"1 labelled rows are too few .*; label more rows"):
        out_of_fold(Witness, numbered(0, 1), np.array([0]), numbered(1, 3))


def test_an_empty_pool_is_predicted_as_no_rows() -> None:
    y = np.repeat([0, 1], 5)
    assert out_of_fold(gradient_boosting, numbered(0, 10), y, numbered(10, 0)).probs_pool.shape == (5, 0, 2)


def test_gradient_boosting_learns_20_classes_of_8_labels_each() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, 6)) * 3
    y = np.tile(np.arange(20), 58)
    x = centres[y] + rng.normal(size=(len(y), 6))
    result = out_of_fold(gradient_boosting, x[:160], y[:160], x[160:])
    assert (result.probs_pool[0].argmax(1) == y[160:]).mean() > 0.6  # chance is 0.05
    np.testing.assert_allclose(result.probs_pool.sum(2), 1, atol=1e-5)


def test_gradient_boosting_takes_categories_as_such_and_missing_values() -> None:
    rng = np.random.default_rng(0)
    category = rng.integers(0, 40, 600)
    of_category = rng.permutation(40) % 2  # no order in it
    x = np.column_stack([category, rng.normal(size=600)]).astype(np.float64)
    x[::10, 1] = np.nan
    model = gradient_boosting(np.array([True, False])).fit(x, of_category[category])
    assert model.score(x, of_category[category]) > 0.95
