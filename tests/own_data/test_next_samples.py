"""The samples to label next."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data import next_samples as module
from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.next_samples import class_needs, most_covering, next_samples, priority_sample, weights_of_rows

Array = npt.NDArray[Any]
CENTERS = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 1.7]])  # each class is as far from the others


def overlapping(num_rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Three overlapping clouds of equal size: the true probabilities, the features and the classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(num_rows) % 3
    x = CENTERS[y] + 0.7 * rng.standard_normal((num_rows, 2))
    scores = -((x[:, None] - CENTERS) ** 2).sum(2) / (2 * 0.7**2)
    probs = np.exp(scores - scores.max(1, keepdims=True))
    return probs / probs.sum(1, keepdims=True), x, y


def labeled(num_labels: tuple[int, ...], seed: int = 1) -> Array:
    y = np.repeat(np.arange(3), num_labels)
    return CENTERS[y] + 0.7 * np.random.default_rng(seed).standard_normal((len(y), 2))


def undecided(num_rows: int, num_classes: int = 2) -> Array:
    return np.full((num_rows, num_classes), 1 / num_classes)


@pytest.mark.parametrize("budget", [1, 2, 31, 89, 90, 200])
def test_as_many_different_rows_of_the_pool_are_chosen_as_the_budget_allows(budget: int) -> None:
    probs, x, _ = overlapping(90)
    rows, reasons = next_samples(probs, x, labeled((9, 3, 1)), [9, 3, 1], None, budget=budget)
    assert len(rows) == len(set(rows.tolist())) == len(reasons) == min(budget, 90)
    assert set(rows.tolist()) <= set(range(90))
    assert all(reasons)


def test_a_larger_budget_continues_the_choice_of_a_smaller_one() -> None:
    probs, x, _ = overlapping(90)
    few, many, every = (next_samples(probs, x, labeled((9, 3, 1)), [9, 3, 1], None, budget=b).rows for b in (5, 20, 90))
    np.testing.assert_array_equal(few, many[:5])
    np.testing.assert_array_equal(many, every[:20])


def test_the_seed_decides_the_draw_from_a_large_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    probs, x, _ = overlapping(900)

    def rows(seed: int) -> list[int]:
        return next_samples(probs, x, labeled((9, 3, 1)), [9, 3, 1], None, budget=10, seed=seed).rows.tolist()

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_a_large_pool_is_sampled_and_a_budget_above_the_sample_is_still_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 100)
    monkeypatch.setattr(module, "MOST_LABELED", 5)
    monkeypatch.setattr(module, "MOST_SPREAD", 50)
    probs, x, _ = overlapping(900)
    rows = next_samples(probs, x, labeled((9, 3, 1)), [9, 3, 1], None, budget=400).rows
    assert len(set(rows.tolist())) == 400
    weights = weights_of_rows(probs, class_needs(np.array([9, 3, 1]), None))
    left = np.setdiff1d(np.arange(900), rows)
    assert weights[rows[50:]].min() >= weights[left].max()  # beyond the spread rows, the heaviest ones


@pytest.mark.parametrize("rare", [0, 1, 2])
def test_a_class_with_few_labels_gets_more_than_its_share_of_the_pool(rare: int) -> None:
    counts = np.full(3, 40)
    counts[rare] = 2
    of_rare = []
    for seed in range(5):
        probs, x, y = overlapping(600, seed)
        rows = next_samples(probs, x, labeled(tuple(counts), 100 + seed), counts, None, budget=30).rows
        of_rare.append(np.mean(y[rows] == rare))
    assert np.mean(of_rare) > 0.4  # a third of the pool is of this class


def test_a_class_whose_share_is_uncertain_gets_more_rows() -> None:
    probs, x, y = overlapping(600)
    share, narrow = np.full(3, 1 / 3), np.full(3, 0.01)
    wide = np.array([0.01, 0.01, 0.3])

    def rows_of_the_last_class(half_width: Array) -> int:
        interval = Interval(share, share - half_width, share + half_width)
        rows = next_samples(probs, x, labeled((20, 20, 20)), [20, 20, 20], interval, budget=60).rows
        return int(np.count_nonzero(y[rows] == 2))

    assert rows_of_the_last_class(wide) > rows_of_the_last_class(narrow)


def test_contested_rows_come_before_certain_rows() -> None:
    is_contested = np.arange(200) % 2 == 0
    x = np.random.default_rng(0).standard_normal((200, 2)) + 20 * is_contested[:, None]  # two clouds far apart
    probs = np.where(is_contested[:, None], [0.5, 0.5], [0.99, 0.01])
    rows = next_samples(probs, x, np.array([[0.0, 0.0], [20.0, 20.0]]), [5, 5], None, budget=10).rows
    assert is_contested[rows].mean() >= 0.8


def test_near_duplicates_are_not_chosen_together() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 10)
    x = rng.standard_normal((20, 5))[group] + 1e-4 * rng.standard_normal((200, 5))
    rows = next_samples(undecided(200), x, np.zeros((1, 5)), [1, 0], None, budget=20).rows
    assert sorted(group[rows]) == list(range(20))


def test_copies_of_labelled_rows_come_last() -> None:
    rng = np.random.default_rng(0)
    labels, new = rng.standard_normal((10, 3)), rng.standard_normal((10, 3))
    rows = next_samples(undecided(20), np.concatenate([labels, new]), labels, [5, 5], None, budget=10).rows
    assert set(rows.tolist()) == set(range(10, 20))


def test_a_dense_region_comes_before_an_outlier() -> None:
    x = np.concatenate([0.1 * np.random.default_rng(0).standard_normal((50, 2)), [[9.0, 9.0]]])
    rows = next_samples(undecided(51), x, np.array([[-3.0, -3.0]]), [1, 0], None, budget=51).rows
    assert rows[0] != 50
    assert 50 in rows


def test_a_class_without_a_label_is_found_even_if_the_model_is_sure_of_another_class() -> None:
    rng = np.random.default_rng(0)
    known, new = rng.standard_normal((300, 2)), rng.standard_normal((60, 2)) + 12
    probs = np.tile([0.5, 0.5, 0.0], (300, 1))
    sure = np.tile([1.0, 0.0, 0.0], (60, 1))
    shares = Interval(np.array([0.5, 0.5, np.nan]), np.array([0.4, 0.4, 0.0]), np.array([0.6, 0.6, 1.0]))
    chosen = next_samples(
        np.concatenate([probs, sure]), np.concatenate([known, new]), known[:20], [10, 10, 0], shares, budget=10
    )
    is_new = chosen.rows >= 300
    assert is_new.any()
    assert chosen.reasons[int(is_new.argmax())] == "unlike every labelled sample"


def test_reasons_name_the_classes() -> None:
    probs = np.array([[0.5, 0.45, 0.05], [0.02, 0.08, 0.9], [0.9, 0.06, 0.04], [0.0, 0.4, 0.6]])
    x = np.arange(8.0).reshape(4, 2)
    chosen = next_samples(probs, x, x + 0.1, [30, 30, 3], None, budget=4, class_names=["ant", "bee", "cat"])
    reasons = dict(zip(chosen.rows.tolist(), chosen.reasons, strict=True))
    assert reasons[0] == "contested between ant and bee"
    assert reasons[1] == "few labels of class cat"
    assert reasons[2] in ("stands for similar samples", "less useful than the samples before")
    assert reasons[3] == "few labels of class cat; contested between cat and bee"


def literal_choice(x: Array, weights: Array, cover: Array, width: float, budget: int) -> list[int]:
    """Compute all gains anew for every choice, with loops."""
    chosen: list[int] = []
    for _ in range(budget):
        gains = []
        for j in range(len(x)):
            by_j = np.exp(-((x - x[j]) ** 2).sum(1) / width)
            gains.append(-1.0 if j in chosen else sum(weights * np.maximum(by_j - cover, 0)))
        best = int(np.argmax(gains))
        chosen.append(best)
        cover = np.maximum(cover, np.exp(-((x - x[best]) ** 2).sum(1) / width))
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_equals_a_loop_that_computes_every_gain_anew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weights, cover = rng.standard_normal((120, 3)), rng.random(120), 0.5 * rng.random(120)
    chosen = most_covering(x.astype(np.float32), weights, cover, 1.5, 25)
    assert chosen.tolist() == literal_choice(x.astype(np.float32), weights, cover, 1.5, 25)


def test_the_sample_of_a_pool_keeps_the_sum_of_the_weights_on_average() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(300) ** 3 + 0.01
    weights[7] = 100.0
    is_even, sums = np.arange(300) % 2 == 0, []
    for _ in range(2000):
        drawn, new = priority_sample(weights, 40, rng)
        assert len(drawn) == 40
        assert 7 in drawn
        sums.append(new[is_even[drawn]].sum())
    error = np.std(sums) / np.sqrt(len(sums))
    assert np.mean(sums) == pytest.approx(weights[is_even].sum(), abs=4 * error)


def test_offset_and_unit_of_the_features_do_not_matter() -> None:
    probs, x, _ = overlapping(90)
    labels = labeled((9, 3, 1))
    here = next_samples(probs, x, labels, [9, 3, 1], None, budget=20).rows
    there = next_samples(probs, 1e7 + 1e3 * x, 1e7 + 1e3 * labels, [9, 3, 1], None, budget=20).rows
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("num_classes", [2, 1000])
@pytest.mark.parametrize("num_rows", [0, 1, 40])
@pytest.mark.parametrize("num_labeled", [0, 3])
@pytest.mark.parametrize("kind", ["constant", "huge", "single precision"])
@pytest.mark.parametrize("is_sure", [False, True])
def test_extreme_pools_give_all_their_rows(
    num_classes: int, num_rows: int, num_labeled: int, kind: str, is_sure: bool
) -> None:
    x = np.random.default_rng(0).standard_normal((num_rows + num_labeled, 3))
    x = {"constant": np.ones_like(x), "huge": 1e30 * x, "single precision": x.astype(np.float32)}[kind]
    probs = np.eye(num_classes)[np.zeros(num_rows, int)] if is_sure else undecided(num_rows, num_classes)
    counts = np.zeros(num_classes, int)
    counts[0] = num_labeled
    unknown = np.full(num_classes, np.nan)
    for shares in (None, Interval(unknown, unknown, unknown), Interval(unknown, 0 * counts + 0.5, 0 * counts + 0.5)):
        with np.errstate(all="raise", under="ignore"):
            rows, reasons = next_samples(probs, x[num_labeled:], x[:num_labeled], counts, shares, budget=num_rows + 1)
        assert sorted(rows.tolist()) == list(range(num_rows))
        assert len(reasons) == num_rows


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"budget": 0}, "budget is 0; choose at least one"),
        ({"probs": np.ones((4, 2))}, r"shape \(4, 2\).*one line per sample"),
        ({"num_labels": [1, 2, 3]}, "2 classes and numbers of labels of 3"),
        ({"labeled_features": np.ones((3, 5))}, "same number of columns"),
        ({"probs": np.full((6, 2), np.nan)}, "probabilities of the pool contain values that are not finite"),
        ({"features": np.full((6, 3), np.inf)}, "features of the pool contain values that are not finite"),
        ({"labeled_features": np.full((3, 3), np.nan)}, "features of the labelled samples contain"),
    ],
)
def test_input_that_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "probs": undecided(6),
        "features": np.arange(18.0).reshape(6, 3),
        "labeled_features": np.ones((3, 3)),
        "num_labels": [2, 1],
        "shares": None,
        "budget": 2,
    }
    with pytest.raises(ValueError, match=message):
        next_samples(**(arguments | changed))


@pytest.mark.slow
def test_on_digits_fewer_labels_suffice_than_with_random_choice_and_uncertainty_sampling() -> None:
    from benchmarks.next_labels import choose_next, choose_random, choose_uncertain, rounds_of
    from sklearn.datasets import load_digits

    digits, seeds = load_digits(), range(5)

    def mean_accuracies(choose: Any, rounds: int) -> Array:
        curves = [
            [
                result["balanced_accuracy"]
                for result in rounds_of(digits.data, digits.target, choose, rounds=rounds, budget=30, seed=seed)
            ]
            for seed in seeds
        ]
        return np.mean(curves, 0)

    ours = mean_accuracies(choose_next, 3)  # 51, 81, 111 and 141 labels
    assert ours[3] > mean_accuracies(choose_random, 5)[5]  # 201 labels
    assert ours[1] > mean_accuracies(choose_uncertain, 1)[1] + 1
