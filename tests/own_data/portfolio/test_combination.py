from __future__ import annotations

import numpy as np
import pytest

from mnar.own_data.portfolio import combination
from mnar.own_data.portfolio.combination import (
    SMALLEST_SUM,
    combine,
    combined_weights,
    fit_weights,
    label_weights,
    logs,
    out_of_fold_combination,
)
from mnar.own_data.portfolio.cross_validation import Folds, Tried
from mnar.own_data.portfolio.member import Floats, Integers, softmax

EQUAL = np.ones(3) / 3


def made_up(num_rows: int = 60, seed: int = 0) -> tuple[Floats, Integers]:
    """Return probabilities [2, n, 3] of two members, of which the first is better, and the labels."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, num_rows, p=[0.7, 0.2, 0.1])
    scores = np.stack([sharp * np.eye(3)[y] + rng.standard_normal((num_rows, 3)) for sharp in (1.2, 0.7)])
    return np.stack([softmax(s) for s in scores]), y


def as_tried(probs: Floats) -> list[Tried]:
    """Return results with one repeat."""
    no_pool = np.zeros((5, 0, probs.shape[-1]), np.float32)
    return [Tried(str(number), False, 0.0, of_member[None], no_pool) for number, of_member in enumerate(probs)]


def as_folds(y: Integers, num_folds: int = 5) -> Folds:
    return Folds(np.arange(len(y)), y, (np.arange(len(y)) % num_folds)[None], np.zeros(0, np.int64))


@pytest.mark.parametrize("shares", [EQUAL, np.array([0.1, 0.3, 0.6])])
def test_the_weights_of_two_members_equal_the_best_of_a_grid(shares: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combination, "TOWARDS_EQUAL", 0.0)
    probs, y = made_up()
    class_weight = shares / np.bincount(y)
    logits = np.log(probs + 0.01)

    def loss(a: float, b: float) -> float:
        mixed = softmax(a * logits[0] + b * logits[1])
        return float(class_weight[y] @ -np.log(mixed[np.arange(len(y)), y]))

    steps = np.arange(0, 2.4, 0.04)
    best = min(((a, b) for a in steps for b in steps), key=lambda pair: loss(*pair))
    np.testing.assert_allclose(fit_weights(logs(probs), y, shares), best, atol=0.04)


def test_the_gradient_equals_finite_differences_so_nearby_weights_are_worse() -> None:
    probs, y = made_up()
    weights = fit_weights(logs(probs), y, EQUAL)
    of_label, away = label_weights(y, EQUAL), weights - 1 / 2

    def loss(moved: Floats) -> float:
        right = combine(logs(probs), moved)[np.arange(len(y)), y]
        return float(-of_label @ np.log(right) + 0.001 * 2 / 2 * ((moved - 1 / 2) ** 2).sum())

    assert (weights > 0).all()
    assert np.abs(away).max() > 0.01
    for step in (0.01, -0.01):
        for number in range(2):
            assert loss(weights + step * np.eye(2)[number]) > loss(weights)


def test_a_copy_of_a_member_shares_its_weight_and_does_not_change_the_combination() -> None:
    probs, y = made_up()
    two, three = fit_weights(logs(probs), y, EQUAL), fit_weights(logs(probs[[0, 0, 1]]), y, EQUAL)
    np.testing.assert_allclose(three[0], three[1], atol=1e-4)
    np.testing.assert_allclose(combine(logs(probs), two), combine(logs(probs[[0, 0, 1]]), three), atol=0.02)


def test_overconfident_probabilities_are_softened_to_calibrated_ones() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4000, 3)) * 1.5
    true = softmax(scores)
    y = np.array([rng.choice(3, p=row) for row in true])
    weight = fit_weights(3 * np.log(true)[None], y, np.bincount(y) / len(y))
    np.testing.assert_allclose(weight, 1 / 3, atol=0.03)


def test_labels_are_weighted_to_the_shares_and_no_single_label_decides() -> None:
    y = np.array([0, 0, 0, 1])
    np.testing.assert_allclose(label_weights(y, np.array([0.5, 0.5, 0.0])), [1 / 6, 1 / 6, 1 / 6, 1 / 2])
    many = np.array([0] * 999 + [1])
    assert label_weights(many, np.array([0.5, 0.5]))[-1] == pytest.approx(100 / 1099)
    assert label_weights(y, np.array([1.0, 0.0, 0.0])) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-9)


def test_members_with_a_tiny_weight_are_dropped_and_the_others_are_fitted_again() -> None:
    probs, y = made_up(200)
    noise = np.random.default_rng(1).dirichlet([0.2] * 3, len(y))
    weights = combined_weights(as_tried(np.stack([probs[0], noise])), as_folds(y), EQUAL)
    assert weights[1] == 0
    np.testing.assert_allclose(weights[0], fit_weights(logs(probs[:1]), y, EQUAL)[0], atol=1e-6)


def test_members_that_are_worse_than_chance_get_a_tiny_weight_but_none_is_left_without() -> None:
    _, y = made_up()
    wrong = 0.98 * np.eye(3)[(y + 1) % 3] + 0.01
    weights = combined_weights(as_tried(np.stack([wrong, wrong])), as_folds(y), EQUAL)
    np.testing.assert_allclose(weights, SMALLEST_SUM / 2)


def test_the_weights_for_a_fold_do_not_depend_on_its_labels() -> None:
    probs, y = made_up()
    folds = as_folds(y)
    changed = y.copy()
    changed[folds.fold[0] == 2] = 0
    before = out_of_fold_combination(as_tried(probs), folds, EQUAL)
    after = out_of_fold_combination(as_tried(probs), as_folds(changed), EQUAL)
    held_out = folds.fold[0] == 2
    np.testing.assert_array_equal(before[0, held_out], after[0, held_out])
    assert not np.allclose(before[0, ~held_out], after[0, ~held_out])
    others = fit_weights(logs(probs[:, ~held_out]), y[~held_out], EQUAL)
    np.testing.assert_allclose(before[0, held_out], combine(logs(probs[:, held_out]), others))


def test_one_member_can_exclude_a_class_only_by_a_factor_of_100() -> None:
    np.testing.assert_allclose(np.exp(logs(np.array([[0.0, 1.0]]))), [[0.01, 1.01]])
