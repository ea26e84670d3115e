"""Scores of a run for the model card, from labels that its model was not trained on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.portfolio.member import Floats
from mnar.trained.class_mix import ClassMix
from mnar.trained.model import TrainedModel


class ClassScores(NamedTuple):
    """Scores per class, [k]. A value is NaN if there is nothing to compute it from."""

    num_scored: npt.NDArray[np.int64]  # labels of the class that were scored
    recall: Floats
    precision: Floats  # for data with the class mix of the export
    accuracy: float  # for data with the class mix of the export
    balanced_accuracy: float


def class_scores(model: TrainedModel, mix: ClassMix) -> ClassScores | None:
    """Score the stored predictions; None if the run stores none."""
    stored = model.calibration
    if stored is None or len(stored.y) == 0:
        return None
    num_classes = len(model.inputs.class_names)
    probs = stored.probs
    if mix.shares is not None:
        probs = model.predictor.held_out_probs(stored.probs, stored.y, mix.shares)
    confusion = np.zeros((num_classes, num_classes))
    np.add.at(confusion, (stored.y, probs.argmax(1)), 1)
    counts = confusion.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = confusion / counts[:, None]  # [true class, predicted class]
        recall = rates.diagonal()
        # Classes without scored labels take no part in precision and accuracy.
        weights = np.where(counts > 0, counts if mix.shares is None else mix.shares, 0)
        in_mix = np.nan_to_num(rates) * (weights / weights.sum())[:, None]
        precision = in_mix.diagonal() / in_mix.sum(0)
    accuracy, balanced = float(in_mix.trace()), float(recall[counts > 0].mean())
    num_scored = counts.astype(np.int64) // stored.repeats
    return ClassScores(num_scored, recall, precision, accuracy, balanced)
