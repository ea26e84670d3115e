"""Parts of the page of a network: the test whether labels are missing at random, the reliability, and the command."""

from __future__ import annotations

import numpy as np

from mnar.own_data.confidence import NetworkCalibration
from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.inspection.probe import stratified_folds
from mnar.own_data.page.network import labels_only_test, reliability_of
from mnar.own_data.page.provenance import _origin, command_line
from mnar.run.calibration_file import CalibrationData


def predictions(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Predictions of a model that is right more often than not."""
    scores = 1.5 * np.eye(3)[y] + rng.standard_normal((len(y), 3))
    exponentials = np.exp(scores)
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def p_value(seed: int, pool_mix: tuple[float, ...]) -> float:
    rng = np.random.default_rng(seed)
    y, pool = rng.choice(3, 150, p=(0.5, 0.3, 0.2)), rng.choice(3, 1000, p=pool_mix)
    held_out = CalibrationData(y, predictions(y, rng).astype(np.float32), np.array([100, 60, 40]))
    found = labels_only_test(held_out, predictions(pool, rng))
    assert found is not None
    return found.p_value


def test_the_labels_only_network_shows_whether_labels_are_missing_at_random() -> None:
    at_random = np.array([p_value(seed, (0.5, 0.3, 0.2)) for seed in range(20)])
    assert np.count_nonzero(at_random < 0.05) <= 3, "a valid test rejects in one of twenty cases"
    assert 0.2 < np.median(at_random) < 0.8
    assert all(p_value(seed, (0.1, 0.3, 0.6)) < 0.01 for seed in range(3))


def test_without_held_out_labels_or_without_a_pool_there_is_no_test() -> None:
    rng, y = np.random.default_rng(0), np.array([0, 1, 2])
    held_out = CalibrationData(y, predictions(y, rng), np.array([1, 1, 1]))
    nothing = CalibrationData(y[:0], np.zeros((0, 3)), np.array([1, 1, 1]))
    assert labels_only_test(None, predictions(y, rng)) is None
    assert labels_only_test(nothing, predictions(y, rng)) is None
    assert labels_only_test(held_out, np.zeros((0, 3))) is None


def test_no_label_of_the_reliability_diagram_confirms_its_own_confidence() -> None:
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    probs, shares = predictions(y, rng), np.array([0.2, 0.3, 0.5])
    shown = reliability_of(CalibrationData(y, probs, np.array([20, 20, 20])), Interval(shares, shares, shares))
    assert shown is not None
    fold = stratified_folds(y, 5)
    for sample in (0, 17, 59):
        others = fold != fold[sample]
        calibration = NetworkCalibration.fit(probs[others], y[others])
        assert calibration is not None
        expected = calibration(probs[[sample]], shares)[0, probs[sample].argmax()]
        np.testing.assert_allclose(np.asarray(shown.confidence)[sample], expected)
    np.testing.assert_allclose(shown.weight, shares[y] / 20)


def test_without_shares_of_the_pool_or_with_labels_of_one_class_the_confidences_are_those_of_the_network() -> None:
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    probs, shares = predictions(y, rng), np.array([0.2, 0.3, 0.5])
    one_class = np.zeros_like(y)
    for labels, interval in ((y, None), (one_class, Interval(shares, shares, shares))):
        shown = reliability_of(CalibrationData(labels, probs, np.array([20, 20, 20])), interval)
        assert shown is not None
        np.testing.assert_array_equal(shown.confidence, probs.max(1))
        assert shown.weight is None


def test_the_command_has_the_options_that_were_given_and_quotes_odd_names() -> None:
    reading = {"label": "the kind", "ignore": ["a", "b"], "size": None, "unlabeled": ()}
    options = {"--learner": None, "--fast": True, "--iterations": 8, "--tensorboard": False}
    assert command_line("my data.csv", reading, options) == (
        "mnar train 'my data.csv' --label 'the kind' --ignore a --ignore b --fast --iterations 8"
    )


def test_the_origin_of_a_run_names_what_is_known_of_its_hardware() -> None:
    environment = {"mnar": "0.2.0", "device": "x86_64", "python": "3.11.7", "torch": "2.13.0"}
    known = [environment, {**environment, "threads": 1}, {**environment, "threads": 2}]
    shown = [dict(_origin(each, "mnar train animals.csv", "animals.csv", None, 1))["Hardware"] for each in known]
    assert shown == ["x86_64", "x86_64, 1 thread", "x86_64, 2 threads"]
