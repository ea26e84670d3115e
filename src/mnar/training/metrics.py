"""The metrics of a classifier: one table says how each metric is computed, named and compared.

Evaluation, terminal, report, bench and TensorBoard all take their metrics from `METRICS`. A new metric is one entry of
this table (docs/extending.md has an example).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

NUM_CONFIDENCE_BINS = 15
Scores = Mapping[str, Any]  # the values of recorded metrics by name: "test" in a line of metrics.jsonl


class Predictions(NamedTuple):
    """The predictions of a model for a test set."""

    confusion: Tensor  # [k, k] float64 on the CPU: samples of each true class (row) with each predicted class (column)
    probs: Tensor  # [n, k] class probabilities, on the device
    targets: Tensor  # [n] true classes, on the device


class Metric(NamedTuple):
    """One metric. A value is a share between 0 and 1, or a list with one share per class."""

    name: str  # the key in metrics.jsonl and in result files
    title: str  # in headings and figures
    compute: Callable[[Predictions], Any]
    is_per_class: bool = False
    higher_is_better: bool = True
    is_headline: bool = False  # shown wherever there is room for a few numbers only
    is_recorded: bool = True  # every evaluation writes the value to metrics.jsonl
    needs_test_samples: bool = True  # of a value per class: undefined for a class without test samples
    # For a metric that is not recorded: compute the value from the recorded scores and the test samples per class.
    from_scores: Callable[[Scores, Sequence[int]], Any] | None = None

    def value(self, scores: Scores, test_counts: Sequence[int]) -> Any:
        """The value at one evaluation, or None if the evaluation does not determine it."""
        if self.name in scores:
            return scores[self.name]
        try:
            return self.from_scores(scores, test_counts) if self.from_scores and test_counts else None
        except KeyError:  # an evaluation without the scores that this metric is computed from
            return None


def accuracy(predictions: Predictions) -> float:
    return float(predictions.confusion.diagonal().sum() / predictions.confusion.sum())


def geometric_mean_of_recalls(predictions: Predictions) -> float:
    """The geometric mean over the classes that occur in the test set."""
    present = predictions.confusion.sum(1) > 0
    return geometric_mean([r for r, is_present in zip(recall(predictions), present, strict=True) if is_present])


def geometric_mean(recalls: Sequence[float]) -> float:
    """prod(recall)^(1/k): zero as soon as one class is never recognised."""
    if min(recalls) == 0:
        return 0.0
    return math.exp(statistics.fmean(math.log(recall) for recall in recalls))


def recall(predictions: Predictions) -> list[float]:
    """The share of each class's test samples that is predicted correctly; 0 for a class without test samples."""
    confusion = predictions.confusion
    recalls: list[float] = (confusion.diagonal() / confusion.sum(1).clamp(min=1)).tolist()
    return recalls


def precision(predictions: Predictions) -> list[float]:
    """The share of the predictions of each class that is correct; 0 for a class that is never predicted."""
    confusion = predictions.confusion
    precisions: list[float] = (confusion.diagonal() / confusion.sum(0).clamp(min=1)).tolist()
    return precisions


def predicted_share(predictions: Predictions) -> list[float]:
    """The share of each class among the predictions."""
    shares: list[float] = (predictions.confusion.sum(0) / predictions.confusion.sum()).tolist()
    return shares


def calibration_error(predictions: Predictions) -> float:
    """Expected calibration error: |accuracy - confidence| over equal-width bins, weighted by their size."""
    confidence, predicted = predictions.probs.max(1)
    correct = predicted == predictions.targets
    bins = (confidence * NUM_CONFIDENCE_BINS).long().clamp(0, NUM_CONFIDENCE_BINS - 1)
    gap = correct.double() - confidence.double()
    gap_per_bin = torch.zeros(NUM_CONFIDENCE_BINS, dtype=gap.dtype, device=gap.device).scatter_add_(0, bins, gap)
    return float(gap_per_bin.abs().sum() / len(confidence))


def auroc(predictions: Predictions) -> list[float | None]:
    """The area under the ROC curve of each class against all others.

    The area is the probability that a sample of the class gets a higher probability of the class than another sample.
    It is None for a class without test samples, and for a class with a probability that is not a number.
    """
    areas: list[float | None] = []
    for label, probs in enumerate(predictions.probs.double().unbind(1)):
        is_member = predictions.targets == label
        num_members = int(is_member.sum())
        num_others = len(probs) - num_members
        if num_members == 0 or num_others == 0 or probs.isnan().any():
            areas.append(None)
            continue
        _, group, sizes = probs.unique(return_inverse=True, return_counts=True)
        sizes = sizes.double()  # float32 would lose digits of the sum of 10,000 ranks
        ranks = (sizes.cumsum(0) - (sizes - 1) / 2)[group]  # from 1; samples with equal probabilities share a rank
        wins = ranks[is_member].sum() - num_members * (num_members + 1) / 2
        areas.append(float(wins / (num_members * num_others)))
    return areas


def _balanced_accuracy(scores: Scores, test_counts: Sequence[int]) -> float:
    return statistics.fmean(_of_present_classes(scores["recall"], test_counts))


def _macro_f1(scores: Scores, test_counts: Sequence[int]) -> float:
    pairs = zip(scores["precision"], scores["recall"], strict=True)
    f1 = [2 * p * r / (p + r) if p + r > 0 else 0.0 for p, r in pairs]
    return statistics.fmean(_of_present_classes(f1, test_counts))


def _of_present_classes(values: Sequence[float], test_counts: Sequence[int]) -> list[float]:
    return [value for value, count in zip(values, test_counts, strict=True) if count > 0]


def _from_predictions(from_scores: Callable[[Scores, Sequence[int]], float]) -> Callable[[Predictions], float]:
    """The same metric, computed from predictions instead of recorded scores."""

    def compute(predictions: Predictions) -> float:
        scores = {"precision": precision(predictions), "recall": recall(predictions)}
        return from_scores(scores, predictions.confusion.sum(1).tolist())

    return compute


# In the order in which an evaluation records them.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", accuracy, is_headline=True),
        Metric("geometric_mean", "geometric mean", geometric_mean_of_recalls, is_headline=True),
        Metric("precision", "precision", precision, is_per_class=True),
        Metric("recall", "recall", recall, is_per_class=True),
        Metric("predicted_share", "share of predictions", predicted_share, is_per_class=True, needs_test_samples=False),
        Metric("calibration_error", "calibration error", calibration_error, higher_is_better=False),
        # These follow from the recorded scores, so reports show them for runs of older versions, too.
        Metric(
            "balanced_accuracy",
            "balanced accuracy",
            _from_predictions(_balanced_accuracy),
            is_recorded=False,
            from_scores=_balanced_accuracy,
        ),
        Metric("macro_f1", "macro-F1", _from_predictions(_macro_f1), is_recorded=False, from_scores=_macro_f1),
        # Sorting the probabilities of every class takes long with many classes, so only `mnar eval` computes this.
        Metric("auroc", "AUROC", auroc, is_per_class=True, is_recorded=False),
    )
}


# Functions and not lists, so that a metric that a user's program adds to the table appears everywhere, too.
def headline_metrics() -> list[Metric]:
    return [metric for metric in METRICS.values() if metric.is_headline]


def overall_metrics() -> list[Metric]:
    return [metric for metric in METRICS.values() if not metric.is_per_class]


def per_class_metrics() -> list[Metric]:
    return [metric for metric in METRICS.values() if metric.is_per_class]


def recorded_scores(predictions: Predictions) -> dict[str, Any]:
    """The values that an evaluation writes to metrics.jsonl."""
    return {metric.name: metric.compute(predictions) for metric in METRICS.values() if metric.is_recorded}


def all_scores(predictions: Predictions) -> dict[str, Any]:
    """The values of every metric, for `mnar eval`; None for a class whose value needs test samples and has none."""
    is_tested = (predictions.confusion.sum(1) > 0).tolist()
    scores = {metric.name: metric.compute(predictions) for metric in METRICS.values()}
    for metric in per_class_metrics():
        if metric.needs_test_samples:
            pairs = zip(scores[metric.name], is_tested, strict=True)
            scores[metric.name] = [value if has_samples else None for value, has_samples in pairs]
    return scores
