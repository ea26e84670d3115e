"""Every metric of the table equals an independent computation, most of them by scikit-learn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import gmean
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch import Tensor

from mnar.training import metrics
from mnar.training.evaluation import count_pairs
from mnar.training.metrics import METRICS, Predictions, all_scores, recorded_scores

NUM_CLASSES, NUM_SAMPLES = 5, 400
RUNS_OF_0_1_0 = Path(__file__).parent.parent / "fixtures" / "runs_of_version_0.1.0"
DERIVED = [name for name, metric in METRICS.items() if metric.from_scores is not None]


def predictions_of(probs: Tensor, targets: Tensor) -> Predictions:
    confusion = count_pairs(targets, probs.max(1).indices, probs.shape[1], probs.shape[1])
    return Predictions(confusion.double(), probs, targets)


def random_predictions() -> Predictions:
    """Predictions that are better than chance, of classes with different frequencies."""
    generator = torch.Generator().manual_seed(0)
    frequency = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0])
    targets = torch.multinomial(frequency, NUM_SAMPLES, replacement=True, generator=generator)
    logits = torch.randn(NUM_SAMPLES, NUM_CLASSES, generator=generator)
    logits[range(NUM_SAMPLES), targets] += 1.0
    return predictions_of(logits.softmax(1), targets)


def with_tied_probabilities() -> Predictions:
    """Probabilities with one digit, so that many samples have the same one."""
    probs, targets = random_predictions()[1:]
    return predictions_of((10 * probs).round() / 10, targets)


def without_test_samples_of_a_class() -> Predictions:
    probs, targets = random_predictions()[1:]
    return predictions_of(probs[targets != 2], targets[targets != 2])


def without_predictions_of_a_class() -> Predictions:
    probs, targets = random_predictions()[1:]
    return predictions_of(probs * (torch.arange(NUM_CLASSES) != 1), targets)


def without_samples_and_predictions_of_a_class() -> Predictions:
    probs, targets = without_test_samples_of_a_class()[1:]
    return predictions_of(probs * (torch.arange(NUM_CLASSES) != 2), targets)


def of_one_class_only() -> Predictions:
    """A test set with a single class."""
    probs, targets = random_predictions()[1:]
    return predictions_of(probs[targets == 3], targets[targets == 3])


def certain_and_correct() -> Predictions:
    targets = torch.arange(NUM_SAMPLES) % NUM_CLASSES
    return predictions_of(torch.eye(NUM_CLASSES)[targets], targets)


def with_numbers_that_are_not_finite() -> Predictions:
    """Logits of which some overflowed: the softmax of a row with an infinite logit is not a number."""
    logits, targets = random_predictions().probs.log(), random_predictions().targets
    logits[:10, 0] = math.inf
    logits[10:20] = math.nan
    logits[20:30, 1] = -math.inf  # this row has a softmax, with probability 0 for the class
    return predictions_of(logits.softmax(1), targets)


CASES = (
    random_predictions,
    with_tied_probabilities,
    without_test_samples_of_a_class,
    without_predictions_of_a_class,
    without_samples_and_predictions_of_a_class,
    of_one_class_only,
    certain_and_correct,
    with_numbers_that_are_not_finite,
)


class Samples:
    """The same predictions, as scikit-learn takes them."""

    def __init__(self, predictions: Predictions) -> None:
        self.truth: npt.NDArray[np.int64] = predictions.targets.numpy()
        self.predicted: npt.NDArray[np.int64] = predictions.probs.max(1).indices.numpy()
        self.probs: npt.NDArray[np.float64] = predictions.probs.double().numpy()
        self.classes = list(range(NUM_CLASSES))
        self.present = sorted(set(self.truth.tolist()))


def expected_recall(samples: Samples) -> list[float]:
    truth, predicted = samples.truth, samples.predicted
    return [*recall_score(truth, predicted, labels=samples.classes, average=None, zero_division=0)]


def expected_precision(samples: Samples) -> list[float]:
    truth, predicted = samples.truth, samples.predicted
    return [*precision_score(truth, predicted, labels=samples.classes, average=None, zero_division=0)]


def expected_geometric_mean(samples: Samples) -> float:
    return float(gmean(recall_score(samples.truth, samples.predicted, labels=samples.present, average=None)))


def expected_macro_f1(samples: Samples) -> float:
    """The average over the classes with test samples, like the balanced accuracy."""
    truth, predicted = samples.truth, samples.predicted
    return float(f1_score(truth, predicted, labels=samples.present, average="macro", zero_division=0))


def expected_predicted_share(samples: Samples) -> list[float]:
    return [float((samples.predicted == label).mean()) for label in samples.classes]


def expected_calibration_error(samples: Samples) -> float:
    confidence, is_correct = samples.probs.max(1), samples.predicted == samples.truth
    if np.isnan(confidence).any():
        return math.nan
    total = 0.0
    for i in range(15):
        low, high = np.float32(i / 15), np.float32((i + 1) / 15)
        inside = (confidence >= low) & ((confidence < high) | (i == 14))
        if inside.any():
            total += inside.mean() * abs(is_correct[inside].mean() - confidence[inside].mean())
    return total


def expected_auroc(samples: Samples) -> list[float | None]:
    areas: list[float | None] = []
    for label, probs in enumerate(samples.probs.T):
        is_member = samples.truth == label
        is_defined = is_member.any() and not is_member.all() and not np.isnan(probs).any()
        areas.append(float(roc_auc_score(is_member, probs)) if is_defined else None)
    return areas


EXPECTED: dict[str, Callable[[Samples], Any]] = {
    "accuracy": lambda samples: float(accuracy_score(samples.truth, samples.predicted)),
    "geometric_mean": expected_geometric_mean,
    "precision": expected_precision,
    "recall": expected_recall,
    "predicted_share": expected_predicted_share,
    "calibration_error": expected_calibration_error,
    "balanced_accuracy": lambda samples: float(balanced_accuracy_score(samples.truth, samples.predicted)),
    "macro_f1": expected_macro_f1,
    "auroc": expected_auroc,
}


def approximately(value: Any, tolerance: float = 1e-12) -> Any:
    """Compare floats with a tolerance, also inside a list; None must be equal."""
    if isinstance(value, list):
        return [approximately(each, tolerance) for each in value]
    return value if value is None else pytest.approx(value, abs=tolerance, nan_ok=True)


def test_every_metric_has_an_independent_computation_here() -> None:
    assert EXPECTED.keys() == METRICS.keys(), "add the expected value of a new metric to EXPECTED"


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true:UserWarning")
@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log:RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", METRICS)
def test_a_metric_equals_the_independent_computation(name: str, case: Callable[[], Predictions]) -> None:
    predictions = case()
    expected = EXPECTED[name](Samples(predictions))
    tolerance = 1e-6 if name == "calibration_error" else 1e-12  # float32 at the borders of the bins
    assert METRICS[name].compute(predictions) == approximately(expected, tolerance)


def test_the_cases_are_what_their_names_say() -> None:
    counts = without_test_samples_of_a_class().confusion
    assert counts.sum(1)[2] == 0 < counts.sum(0)[2]
    counts = without_predictions_of_a_class().confusion
    assert counts.sum(0)[1] == 0 < counts.sum(1)[1]
    assert with_tied_probabilities().probs[:, 0].unique().numel() < 12
    probs = with_numbers_that_are_not_finite().probs
    assert int(probs.isnan().any(1).sum()) == 20
    assert not probs[20:30, 1].any()


def test_confusion_scores_equal_those_computed_by_hand() -> None:
    predictions = of_counts([[6, 2, 2], [1, 4, 0], [0, 1, 4]])
    assert metrics.accuracy(predictions) == pytest.approx(14 / 20)
    assert metrics.recall(predictions) == pytest.approx([6 / 10, 4 / 5, 4 / 5])
    assert metrics.precision(predictions) == pytest.approx([6 / 7, 4 / 7, 4 / 6])
    assert metrics.predicted_share(predictions) == pytest.approx([7 / 20, 7 / 20, 6 / 20])
    assert metrics.geometric_mean_of_recalls(predictions) == pytest.approx((0.6 * 0.8 * 0.8) ** (1 / 3))


def of_counts(confusion: list[list[int]]) -> Predictions:
    """Predictions with these counts; scores of the confusion need nothing else."""
    return Predictions(torch.tensor(confusion, dtype=torch.float64), torch.zeros(0), torch.zeros(0))


def test_a_class_that_is_never_predicted_has_precision_zero_and_makes_the_geometric_mean_zero() -> None:
    predictions = of_counts([[5, 0], [5, 0]])
    assert metrics.precision(predictions) == [0.5, 0.0]
    assert metrics.recall(predictions) == [1.0, 0.0]
    assert metrics.geometric_mean_of_recalls(predictions) == 0.0


def test_a_class_without_test_samples_is_left_out_of_the_means_over_classes_only() -> None:
    predictions = of_counts([[6, 2, 2], [1, 4, 0], [0, 0, 0]])
    assert metrics.geometric_mean_of_recalls(predictions) == pytest.approx((0.6 * 0.8) ** (1 / 2))
    assert METRICS["balanced_accuracy"].compute(predictions) == pytest.approx((0.6 + 0.8) / 2)
    assert METRICS["macro_f1"].compute(predictions) == pytest.approx((12 / 17 + 8 / 11) / 2)  # F1 = 2tp / (2tp+fp+fn)
    assert metrics.accuracy(predictions) == pytest.approx(10 / 15)
    assert metrics.recall(predictions) == pytest.approx([0.6, 0.8, 0])
    assert metrics.precision(predictions) == pytest.approx([6 / 7, 4 / 6, 0])
    assert metrics.predicted_share(predictions) == pytest.approx([7 / 15, 6 / 15, 2 / 15])


def test_the_geometric_mean_of_many_small_recalls_does_not_vanish() -> None:
    assert metrics.geometric_mean([1e-3] * 1000) == pytest.approx(1e-3)


def test_the_calibration_error_of_certain_and_correct_predictions_is_zero() -> None:
    assert metrics.calibration_error(certain_and_correct()) == 0


def test_the_calibration_error_counts_confidences_at_the_borders_of_the_bins() -> None:
    confidence = torch.tensor([0.0, 1.0, 1.0, 0.2, 0.4])
    probs = torch.stack([confidence, torch.full((5,), -1.0)], 1)  # the first class is always predicted
    targets = torch.tensor([0, 0, 1, 1, 0])
    error = (abs(1 - 0) + abs((1 - 1) + (0 - 1)) + abs(0 - 0.2) + abs(1 - 0.4)) / 5  # four bins
    assert metrics.calibration_error(predictions_of(probs, targets)) == pytest.approx(error)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DERIVED)
def test_a_metric_derived_from_recorded_scores_equals_the_computed_one(
    name: str, case: Callable[[], Predictions]
) -> None:
    predictions = case()
    test_counts = predictions.confusion.sum(1).long().tolist()
    from_file = json.loads(json.dumps(recorded_scores(predictions)))
    assert name not in from_file
    assert METRICS[name].value(from_file, test_counts) == METRICS[name].compute(predictions)


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_metric_is_unknown_without_the_scores_or_the_test_counts_that_it_needs(name: str) -> None:
    scores = recorded_scores(random_predictions())
    assert METRICS[name].value(scores, []) is None
    assert METRICS[name].value({"accuracy": 0.5}, [1] * NUM_CLASSES) is None


def test_a_recorded_metric_is_read_from_the_scores_and_a_metric_of_mnar_eval_is_unknown() -> None:
    scores = recorded_scores(random_predictions())
    for metric in METRICS.values():
        expected = scores[metric.name] if metric.is_recorded else None
        assert metric.value(scores, []) == expected


def test_an_evaluation_records_the_same_scores_in_the_same_order_as_version_0_1_0() -> None:
    (old, *_) = RUNS_OF_0_1_0.rglob("metrics.jsonl")
    first_line, *_ = old.read_text().splitlines()
    assert [*recorded_scores(random_predictions())] == [*json.loads(first_line)["test"]]


def test_all_scores_has_every_metric_with_one_value_per_class_or_one_overall() -> None:
    scores = all_scores(random_predictions())
    assert [*scores] == [*METRICS]
    for name, value in scores.items():
        assert isinstance(value, list) == METRICS[name].is_per_class
        assert not METRICS[name].is_per_class or len(value) == NUM_CLASSES
    json.dumps(scores)  # plain numbers


def test_all_scores_are_none_for_a_class_without_test_samples_except_its_share_of_the_predictions() -> None:
    confusion = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 2.0]], dtype=torch.float64)
    predicted = [c for row in confusion.long().tolist() for c, count in enumerate(row) for _ in range(count)]
    probs = torch.nn.functional.one_hot(torch.tensor(predicted), 3).double()
    scores = all_scores(Predictions(confusion, probs, torch.tensor([0] * 4 + [2] * 4)))
    assert scores["recall"] == [0.75, None, 0.5]
    assert scores["precision"] == [1.0, None, 1.0]
    assert scores["auroc"][1] is None
    assert scores["predicted_share"] == [3 / 8, 3 / 8, 2 / 8]
    assert scores["balanced_accuracy"] == 0.625
    assert scores["geometric_mean"] == pytest.approx((0.75 * 0.5) ** 0.5)


def test_every_metric_is_overall_or_per_class_and_the_headline_metrics_are_overall() -> None:
    overall, per_class = metrics.overall_metrics(), metrics.per_class_metrics()
    assert {metric.name for metric in [*overall, *per_class]} == METRICS.keys()
    assert len(overall) + len(per_class) == len(METRICS)
    assert [metric for metric in metrics.headline_metrics() if metric not in overall] == []
    assert all(name == metric.name for name, metric in METRICS.items())
