"""The report of a network that was trained on the user's own data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.config import RunConfig
from mnar.own_data.confidence import held_out_probabilities
from mnar.own_data.inspection.label_shift import AtRandomTest, Interval, missing_at_random_test
from mnar.own_data.inspection.probe import Floats, Integers, OutOfFold
from mnar.own_data.next_samples import NextSamples
from mnar.own_data.page.class_scores import confused_pairs, confusion_of, precision_scores, recall_scores
from mnar.own_data.page.parts import (
    EQUAL_CLASSES,
    at_random,
    confused,
    interval,
    intervals,
    next_command,
    pool_intervals,
    sentence,
)
from mnar.own_data.page.provenance import network_origin
from mnar.own_data.page.shown_samples import PoolView
from mnar.own_data.page.to_label import balanced, candidates_of, short_list
from mnar.own_data.portfolio.scores import Score
from mnar.report import OwnDataPage, Reliability
from mnar.run.calibration_file import CalibrationData, read_calibration
from mnar.run.file_names import BASELINE, TRAINING_REPORT
from mnar.run.folder import RunFolder
from mnar.types import DataSet

NO_BASELINE = "The run uses the labels alone, so there is nothing to compare"
IN_POOL_MIX = (
    "The probabilities are calibrated, and they are for the estimated class mix of the pool. The network decides "
    "without this correction, so the predicted class does not always have the largest probability."
)
UNCALIBRATED = (
    "The probabilities are those of the network. They are not calibrated, because there are too few held-out labels."
)
MOST_TESTED_POOL_ROWS = 5000  # of the pool, for the test whether labels are missing at random


class PoolPredictions(NamedTuple):
    """Predictions of a network for the pool."""

    rows: npt.NDArray[np.int64]  # [n] rows of the data set
    labels: Integers  # [n]
    probs: Floats  # [n, k] calibrated and corrected for the class shares of the pool, if there are held-out labels


def labels_only_test(labels_only: CalibrationData | None, probs_pool: Floats) -> AtRandomTest | None:
    """Test whether labels are missing at random; None without held-out labels or without a pool.

    The predictions are those of a network that was trained on labels alone. A network that was trained on the pool
    treats the pool differently from held-out samples, even if labels are missing at random.
    """
    if labels_only is None or not len(labels_only.y) or not len(probs_pool):
        return None
    one_fold = np.zeros(len(labels_only.y), np.int64)
    out_of_fold = OutOfFold(labels_only.probs.astype(np.float64), one_fold, probs_pool[None].astype(np.float32))
    return missing_at_random_test(out_of_fold, labels_only.y)


def network_short_list(
    folder: Path,
    data: DataSet,
    predictions: PoolPredictions,
    features_of: Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]],
) -> NextSamples | None:
    """Choose a few samples to label next. `features_of` returns the features of samples."""
    labeled = np.flatnonzero(data.train_y.numpy() >= 0)
    candidates = candidates_of(len(predictions.rows), seed=0)
    some_labeled = labeled[candidates_of(len(labeled), seed=0)]
    if not len(candidates) or not len(some_labeled):
        return None
    shares = _pool_shares(read_calibration(folder))
    return short_list(
        balanced(predictions.probs[candidates], shares),
        features_of(data.train_x.numpy()[predictions.rows[candidates]]),
        features_of(data.train_x.numpy()[some_labeled]),
        np.bincount(data.train_y.numpy()[labeled], minlength=len(data.class_names)),
        shares,
        data.class_names,
        candidates,
    )


def network_page(
    folder: Path,
    data: DataSet,
    predictions: PoolPredictions,
    *,
    verdict: str = NO_BASELINE,
    difference: Score | None = None,
    at_random_test: AtRandomTest | None = None,
    to_label: NextSamples | None = None,
) -> OwnDataPage:
    """Collect the content of the page from a finished run folder and the predictions for the pool.

    verdict       whether the unlabelled samples helped, as text
    difference    balanced accuracy minus that of the labels-only baseline; None: not compared on held-out labels
    to_label      samples that should be labelled next
    """
    config, num_classes = RunFolder(folder).config(), len(data.class_names)
    stored, of_baseline = (read_calibration(run, num_classes) for run in (folder, folder / BASELINE))
    shares = _pool_shares(stored)
    y = data.train_y[data.train_y >= 0].numpy()
    num_labels = np.bincount(y, minlength=num_classes)
    if not data.test_is_trained_on:
        num_labels = num_labels + np.bincount(data.test_y.numpy(), minlength=num_classes)
    num_unlabeled = len(predictions.rows)
    predicted_shares = np.bincount(predictions.labels, minlength=num_classes) / max(1, num_unlabeled)
    confusion = None
    if stored is not None and len(stored.y):
        confusion = confusion_of(stored.probs.argmax(1), stored.y, num_classes)
    view = PoolView(data, predictions.rows, predictions.labels, predictions.probs)
    confidences = predictions.probs[np.arange(num_unlabeled), predictions.labels]
    return OwnDataPage(
        title=Path(config.dataset.options["root"]).name,
        class_names=data.class_names,
        num_labels=num_labels.tolist(),
        num_unlabeled=num_unlabeled,
        verdict=sentence(verdict),
        helped=_helped(difference),
        difference=interval(difference),
        at_random=at_random(at_random_test),
        pool_shares=pool_intervals(shares),
        predicted_shares=predicted_shares.tolist() if num_unlabeled else None,
        training=_training(config, folder, data),
        training_page=TRAINING_REPORT,
        scored_on="" if stored is None else _scored_on(len(stored.y)),
        recalls=[] if confusion is None else intervals(recall_scores(confusion)),
        labels_only_recalls=intervals(_labels_only_recalls(of_baseline, num_classes)),
        precisions=[] if confusion is None else intervals(precision_scores(confusion, shares)),
        confused=[] if confusion is None else confused(confused_pairs(confusion), confusion, data.class_names),
        confidences=confidences if num_unlabeled else None,
        reliability=reliability_of(stored, shares),
        columns=view.columns,
        num_columns=view.num_columns,
        samples=view.by_class(),
        about_samples=UNCALIBRATED if shares is None else IN_POOL_MIX,
        next_samples=view.to_label(to_label, balanced(predictions.probs, shares)),
        about_next_samples=UNCALIBRATED if shares is None else EQUAL_CLASSES,
        next_command=next_command(folder, num_unlabeled),
        provenance=network_origin(folder, config),
        notes=[*map(sentence, data.notes)],
    )


def _pool_shares(stored: CalibrationData | None) -> Interval | None:
    """Return the estimated class shares of the pool; None without an estimate."""
    return None if stored is None or stored.pool_shares is None else Interval(*stored.pool_shares)


def _helped(difference: Score | None) -> str:
    if difference is None:
        return "This was not compared."
    if difference.low > 0:
        return "Yes."
    return "No, they made the model worse." if difference.high < 0 else "It cannot be told yet."


def _training(config: RunConfig, folder: Path, data: DataSet) -> list[tuple[str, str]]:
    """Return the most important options, as names and values."""
    options = ", ".join(f"{name} {value}" for name, value in config.model.options.items())
    split, train = RunFolder(folder).split(), config.train
    lines = [
        ("Learner", config.learner.name),
        ("Guidance", config.guidance.full_name),
        ("Network", f"{config.model.name} ({options})" if options else config.model.name),
        ("Training", f"{train.iterations:,} steps, learning rate {train.lr:g}"),
        ("Labels for training", f"{sum(split['labeled']):,}"),
    ]
    if not data.test_is_trained_on:
        lines.append(("Held-out labels", f"{sum(split['test']):,}"))
    if (folder / BASELINE).exists():
        lines.append(("Labels-only baseline", f"the same network, trained on the labels alone ({BASELINE}/)"))
    return lines


def _scored_on(num_held_out: int) -> str:
    if not num_held_out:
        return "There were too few labels to hold some out, so the model is not scored."
    return f"The scores come from {num_held_out:,} held-out labels, which took no part in training."


def _labels_only_recalls(baseline: CalibrationData | None, num_classes: int) -> list[Score | None]:
    if baseline is None or not len(baseline.y):
        return []
    return recall_scores(confusion_of(baseline.probs.argmax(1), baseline.y, num_classes))


def reliability_of(stored: CalibrationData | None, shares: Interval | None) -> Reliability | None:
    """Return the confidences of the held-out labels, weighted to the class shares of the pool."""
    if stored is None or not len(stored.y):
        return None
    predicted, rows = stored.probs.argmax(1), np.arange(len(stored.y))
    in_pool = None if shares is None else shares.for_bayes_rule()
    probs = None if in_pool is None else held_out_probabilities(stored.probs, stored.y, in_pool)
    if in_pool is None or probs is None:
        return Reliability(stored.probs[rows, predicted], predicted == stored.y)
    counts = np.bincount(stored.y, minlength=len(in_pool))
    weight = (in_pool / np.maximum(counts, 1))[stored.y]
    return Reliability(probs[rows, predicted], predicted == stored.y, weight)
