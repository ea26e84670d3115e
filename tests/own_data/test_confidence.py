"""Confidences of a network, calibrated on held-out labels and corrected for the class shares of the pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data.confidence import NetworkCalibration, estimated_pool_shares

OVERCONFIDENT = 4.0  # times the true logit


def overconfident(counts: tuple[int, int], seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Two normal distributions with the means -1 and 1 and these numbers of samples; probabilities far too extreme.

    The true log-odds of balanced classes are 2x.
    """
    y = np.repeat([0, 1], counts)
    x = np.random.default_rng(seed).normal(2.0 * y - 1)
    second = 1 / (1 + np.exp(-OVERCONFIDENT * 2 * x))
    return np.stack([1 - second, second], 1), y


def calibrated_probs(held_out: npt.NDArray[Any], y: npt.NDArray[Any], probs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The probabilities for a pool whose class shares are estimated."""
    shares, calibration = estimated_pool_shares(held_out, y, probs), NetworkCalibration.fit(held_out, y)
    if shares is None or calibration is None:
        return probs
    return calibration(probs, shares.for_bayes_rule())


def confidence_and_accuracy(probs: npt.NDArray[Any], y: npt.NDArray[Any], labels: Any) -> tuple[float, float]:
    return float(probs[np.arange(len(y)), labels].mean()), float((labels == y).mean())


@pytest.mark.parametrize("pool_counts", [(1500, 1500), (300, 2700)], ids=["pool like the labels", "pool shifted"])
def test_the_mean_confidence_becomes_the_accuracy_on_the_pool(pool_counts: tuple[int, int]) -> None:
    held_out, y = overconfident((200, 200), 0)
    probs, truth = overconfident(pool_counts, 1)
    labels = probs.argmax(1)
    before, accuracy = confidence_and_accuracy(probs, truth, labels)
    assert before > accuracy + 0.08
    calibrated = calibrated_probs(held_out, y, probs)
    after, _ = confidence_and_accuracy(calibrated, truth, labels)
    assert after == pytest.approx(accuracy, abs=0.03)
    np.testing.assert_allclose(calibrated.sum(1), 1)
    assert calibrated[:, 1].mean() == pytest.approx(pool_counts[1] / sum(pool_counts), abs=0.05)


def test_the_probabilities_follow_bayes_rule_in_a_shifted_pool() -> None:
    """The log-odds of a sample x are 2x + log(0.9 / 0.1) if nine in ten of the pool are of the second class."""
    held_out, y = overconfident((2000, 2000), 0)
    probs, _ = overconfident((300, 2700), 1)
    calibrated = calibrated_probs(held_out, y, probs)
    log_odds = np.log(probs[:, 1] / np.maximum(probs[:, 0], 1e-300)) / OVERCONFIDENT
    expected = 1 / (1 + np.exp(-log_odds - np.log(9)))
    assert np.abs(probs[:, 1] - expected).mean() > 0.12
    assert np.abs(calibrated[:, 1] - expected).mean() < 0.04


def test_a_class_without_held_out_labels_keeps_its_probability() -> None:
    held_out, y = overconfident((200, 200), 0)
    probs, _ = overconfident((50, 50), 1)
    third = np.linspace(0, 0.9, 100)
    with_third = np.column_stack([probs * (1 - third)[:, None], third])
    with_third_held_out = np.column_stack([held_out, np.zeros(len(y))])
    calibrated = calibrated_probs(with_third_held_out, y, with_third)
    np.testing.assert_array_equal(calibrated[:, 2], third)
    np.testing.assert_allclose(calibrated.sum(1), 1)


def test_without_a_pool_or_with_held_out_labels_of_one_class_nothing_changes() -> None:
    probs, y = overconfident((20, 20), 0)
    assert calibrated_probs(probs, y, probs[:0]).shape == (0, 2)
    np.testing.assert_array_equal(calibrated_probs(probs[:20], y[:20], probs), probs)


def test_certain_and_wrong_predictions_stay_finite() -> None:
    probs, y = np.eye(2)[np.arange(40) % 2], np.arange(40) % 2
    wrong = np.where(np.arange(40) < 4, 1 - y, y)
    calibrated = calibrated_probs(probs, wrong, probs)
    assert np.isfinite(calibrated).all()
    assert calibrated.max() < 1
