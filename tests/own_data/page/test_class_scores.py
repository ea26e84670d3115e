"""Where a model errs: recalls, precisions for the class mix of the pool, and confused pairs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.page.class_scores import Confusion, confused_pairs, confusion_of, precision_scores, recall_scores

TRUE_RATES = np.array([[0.9, 0.08, 0.02], [0.15, 0.8, 0.05], [0.02, 0.08, 0.9]])
SHARES = np.array([0.2, 0.3, 0.5])
EXACT = Interval(SHARES, SHARES, SHARES)


def true_precisions(shares: np.ndarray) -> np.ndarray:
    joint = shares[:, None] * TRUE_RATES
    return np.asarray(np.diag(joint) / joint.sum(0))


def observed(counts: tuple[int, ...], rng: np.random.Generator) -> Confusion:
    drawn = np.stack([rng.multinomial(count, rates) for count, rates in zip(counts, TRUE_RATES, strict=True)])
    return Confusion(drawn / drawn.sum(1, keepdims=True), np.array(counts, float))


def test_the_confusion_has_the_shares_of_each_true_class_and_counts_a_repeated_label_once() -> None:
    y = np.array([0, 0, 0, 0, 2, 2])
    predicted = np.array([0, 1, 0, 0, 2, 0])
    found = confusion_of(predicted, y, 3, repeats=2)
    np.testing.assert_allclose(found.shares[[0, 2]], [[0.75, 0.25, 0], [0.5, 0, 0.5]])
    assert np.isnan(found.shares[1]).all(), "the class has no label"
    np.testing.assert_allclose(found.num_labels, [2, 0, 1])


def test_the_recall_has_the_interval_of_scipy() -> None:
    y, predicted = np.array([0] * 10 + [1] * 4), np.array([0] * 7 + [1] * 7)
    first, second, none = recall_scores(confusion_of(predicted, y, 3))
    assert first is not None
    assert second is not None
    expected = binomtest(7, 10).proportion_ci(method="wilson")
    assert tuple(first) == pytest.approx((0.7, expected.low, expected.high))
    assert second.value == 1
    assert none is None


def test_the_precision_is_bayes_rule_with_the_shares_of_the_pool() -> None:
    counts = np.array([1e9, 1e9, 1e9])
    found = precision_scores(Confusion(TRUE_RATES, counts), EXACT)
    np.testing.assert_allclose([score.value for score in found if score], true_precisions(SHARES))
    np.testing.assert_allclose([score.low for score in found if score], true_precisions(SHARES), rtol=1e-3)
    of_labels = precision_scores(Confusion(TRUE_RATES, np.array([100.0, 50.0, 50.0])), None)
    np.testing.assert_allclose(
        [score.value for score in of_labels if score], true_precisions(np.array([0.5, 0.25, 0.25]))
    )


def test_a_class_without_labels_or_predictions_has_no_precision() -> None:
    y, predicted = np.array([0] * 6 + [1] * 6), np.zeros(12, int)
    shares = np.array([0.5, 0.5, np.nan])
    first, never_predicted, without_labels = precision_scores(
        confusion_of(predicted, y, 3), Interval(shares, shares, shares)
    )
    assert first is not None
    assert first.value == pytest.approx(0.5)
    assert never_predicted is None
    assert without_labels is None


@pytest.mark.parametrize("counts", [(40, 30, 20), (150, 60, 12), (8, 8, 8)])
def test_the_interval_of_the_precision_covers_the_truth_in_about_95_percent_of_cases(counts: tuple[int, ...]) -> None:
    rng, truth, covered = np.random.default_rng(0), true_precisions(SHARES), []
    for _ in range(300):
        scores = precision_scores(observed(counts, rng), EXACT)
        covered += [score.low <= value <= score.high for score, value in zip(scores, truth, strict=True) if score]
    assert 0.92 <= np.mean(covered) <= 0.995


def test_uncertain_shares_make_the_interval_of_the_precision_wider() -> None:
    confusion = Confusion(TRUE_RATES, np.array([40.0, 40.0, 40.0]))
    uncertain = Interval(SHARES, SHARES - 0.15, SHARES + 0.15)
    for exact, wide in zip(precision_scores(confusion, EXACT), precision_scores(confusion, uncertain), strict=True):
        assert exact is not None
        assert wide is not None
        assert wide.value == exact.value
        assert wide.high - wide.low > exact.high - exact.low


def test_pairs_come_in_the_order_of_what_is_certain_and_small_ones_are_left_out() -> None:
    shares = np.array([[0.8, 0.2, 0.0], [0.5, 0.5, 0.0], [0.005, 0.0, 0.995]])
    first, second = confused_pairs(Confusion(shares, np.array([400.0, 2.0, 1000.0])))
    assert (second.true, second.predicted) == (1, 0), "one mistake among two labels"
    assert (first.true, first.predicted, first.share.value) == (0, 1, 0.2)
    expected = binomtest(80, 400).proportion_ci(method="wilson")
    assert tuple(first.share)[1:] == pytest.approx((expected.low, expected.high))
    assert len(confused_pairs(Confusion(shares, np.array([400.0, 2.0, 1000.0])), most=1)) == 1
