from __future__ import annotations

import numpy as np
import pytest

from mnar.own_data.portfolio.member import Floats, Integers, softmax
from mnar.own_data.portfolio.scores import Comparison, Score, compare, cross_validated, recalls, weighted_score


def test_recalls_equal_the_share_of_right_predictions_of_each_class_over_all_repeats() -> None:
    y = np.array([0, 0, 1, 1, 1, 3])
    predicted = np.array([[0, 1, 1, 1, 0, 3], [0, 0, 1, 0, 0, 0]])
    values, variances = recalls(predicted, y, 4)
    np.testing.assert_allclose(values, [3 / 4, 3 / 6, np.nan, 1 / 2])
    assert np.isnan(variances).tolist() == [False, False, True, False]
    assert (variances[[0, 1, 3]] > 0).all()


def test_a_score_is_the_mean_recall_weighted_with_the_shares_and_skips_unknown_classes() -> None:
    values, variances = np.array([0.5, 1.0, np.nan]), np.array([0.01, 0.04, np.nan])
    score = weighted_score(values, variances, np.array([0.2, 0.6, 0.2]))
    assert score.value == pytest.approx(0.25 * 0.5 + 0.75 * 1.0)
    reach = 1.959964 * np.sqrt(0.25**2 * 0.01 + 0.75**2 * 0.04)
    assert score.low == pytest.approx(score.value - reach)
    assert score.high == 1.0


@pytest.mark.parametrize(
    ("num_labels", "truth"),
    [((40, 20, 10), (0.9, 0.7, 0.5)), ((100, 30, 10, 3, 1), (0.95, 0.9, 0.85, 0.8, 0.7)), ((5,) * 6, (0.8,) * 6)],
)
def test_the_95_percent_interval_covers_the_truth_in_92_to_99_percent_of_simulations(
    num_labels: tuple[int, ...], truth: tuple[float, ...]
) -> None:
    rng, num_classes = np.random.default_rng(0), len(truth)
    y = np.repeat(np.arange(num_classes), num_labels)
    covered = 0
    for _ in range(2000):
        predicted = np.where(rng.random(len(y)) < np.array(truth)[y], y, (y + 1) % num_classes)
        score = weighted_score(*recalls(predicted[None], y, num_classes), np.ones(num_classes))
        covered += score.low <= np.mean(truth) <= score.high
    assert 0.92 <= covered / 2000 <= 0.99


def two_models(y: Integers, seed: int, *, better: float = 0.0) -> tuple[Floats, Floats]:
    """Return the probabilities [1, m, k] of two models with independent errors; the first is better by so much."""
    rng, num_classes = np.random.default_rng(seed), int(y.max()) + 1
    shared = 2 * np.eye(num_classes)[y] + rng.standard_normal((len(y), num_classes))
    first, second = shared + rng.standard_normal((2, len(y), num_classes))
    return softmax(first + better * np.eye(num_classes)[y])[None], softmax(second)[None]


@pytest.mark.parametrize(
    "num_labels", [(30, 30, 30), (60, 20, 7, 2, 1), (1,) * 10, (2,) * 6], ids=["many", "skewed", "single", "pairs"]
)
def test_a_comparison_of_equal_models_claims_a_difference_in_about_20_percent_of_simulations(
    num_labels: tuple[int, ...],
) -> None:
    y = np.repeat(np.arange(len(num_labels)), num_labels)
    claims = [compare(*two_models(y, seed), y).verdict != "cannot tell" for seed in range(300)]
    assert np.mean(claims) <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / 300)


def test_a_planted_improvement_is_found_and_its_reverse_is_called_harm() -> None:
    y = np.repeat([0, 1, 2], [60, 30, 10])
    comparisons = [compare(*two_models(y, seed, better=1.0), y) for seed in range(50)]
    assert np.mean([comparison.verdict == "helped" for comparison in comparisons]) > 0.9
    reversed_ = [compare(*two_models(y, seed, better=1.0)[::-1], y).verdict for seed in range(50)]
    assert np.mean([verdict == "did harm" for verdict in reversed_]) > 0.9
    gains = [comparison.balanced_accuracy for comparison in comparisons]
    assert np.mean([gain.value for gain in gains]) > 0.05


def test_the_ratio_is_the_geometric_mean_over_classes_of_how_much_more_probable_the_right_class_is() -> None:
    y = np.array([0, 0, 0, 1])
    one, other = np.array([[[0.8, 0.2]] * 3 + [[0.6, 0.4]]]), np.array([[[0.4, 0.6]] * 3 + [[0.9, 0.1]]])
    comparison = compare(one, other, y)
    assert comparison.ratio.value == pytest.approx(np.sqrt(0.81 / 0.41 * 0.41 / 0.11))
    assert comparison.balanced_accuracy.value == pytest.approx((1 + 0) / 2)


def test_two_copies_of_a_model_make_no_difference() -> None:
    y = np.repeat([0, 1], 500)
    same = two_models(y, 0)[0]
    comparison = compare(same, same, y)
    assert comparison.verdict == "made no difference"
    assert comparison.ratio.value == 1
    assert comparison.balanced_accuracy.value == 0


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.1, 1.4, "helped"), (0.7, 0.9, "did harm"), (0.9, 1.2, "cannot tell"), (0.99, 1.01, "made no difference")],
)
def test_the_verdict_says_on_which_side_of_1_the_interval_lies(low: float, high: float, verdict: str) -> None:
    comparison = Comparison(Score((low + high) / 2, low, high), Score(0, -1, 1), num_labels=100)
    assert comparison.verdict == verdict


def test_perfectly_calibrated_predictions_are_right_as_often_as_their_confidence_says() -> None:
    """The labels are drawn from the balanced probabilities, and the pool has other shares."""
    rng, shares = np.random.default_rng(0), np.array([0.6, 0.3, 0.1])
    y = rng.permutation(np.repeat([0, 1, 2], 8000))
    scores = 1.5 * np.eye(3)[y] + rng.standard_normal((len(y), 3))
    balanced_probs = softmax(1.5 * scores)  # Bayes' rule for these Gaussians and equal classes
    decided = balanced_probs * shares
    result = cross_validated(balanced_probs[None], decided[None], y, shares)
    number = np.minimum((result.confidence * 5).astype(int), 4)
    for bin_number in range(2, 5):
        rows = number == bin_number
        right = np.average(result.is_right[rows], weights=result.weight[rows])
        assert right == pytest.approx(np.average(result.confidence[rows], weights=result.weight[rows]), abs=0.02)


def test_cross_validated_predictions_have_the_class_distribution_of_the_pool_by_weight() -> None:
    y, shares = np.array([0, 0, 0, 1]), np.array([0.2, 0.8])
    probs = np.full((2, 4, 2), 0.5)
    result = cross_validated(probs, probs, y, shares)
    assert len(result.y) == 8
    np.testing.assert_allclose(np.bincount(result.y, result.weight), shares)
