"""calibration.npz: what honest probabilities need besides the model of a run.

y, probs          classes, and predictions for labelled samples that the model was not trained on
repeats           how often every label is in y: the cross-validation of the portfolio predicts each label twice
num_labels        [k] number of labels of each class that the model was trained on
pool_shares       [3, k] estimated class shares of the pool, and the ends of their intervals; missing if unknown
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mnar.atomic_write import write_atomically
from mnar.run.file_names import CALIBRATION, resume_command
from mnar.training.trainer import Trainer
from mnar.types import DataSet

Floats = npt.NDArray[np.float64]


class CalibrationData(NamedTuple):
    """The content of calibration.npz. Without labels that the model was not trained on, y and probs are empty."""

    y: npt.NDArray[np.int64]  # [m]
    probs: npt.NDArray[Any]  # [m, k]; of a network: its softmax; of the portfolio: as if classes were equally frequent
    num_labels: npt.NDArray[np.int64]  # [k]
    repeats: int = 1
    pool_shares: Floats | None = None  # [3, k]: shares, low ends and high ends


def write_calibration(folder: Path, data: CalibrationData) -> None:
    """Write the file."""
    arrays = {name: value for name, value in data._asdict().items() if value is not None}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(folder / CALIBRATION, buffer.getvalue())


def read_calibration(folder: Path) -> CalibrationData | None:
    """Read the file; None if the run has none, because it was written by an older version."""
    path = folder / CALIBRATION
    try:
        with np.load(path, allow_pickle=False) as stored:
            return CalibrationData(**{**stored, "repeats": int(stored["repeats"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        # numpy's own message recommends to unpickle the file, which must never happen
        raise ValueError(f"{path} is damaged; write it again with `{resume_command(folder)}`") from error


def write_network_calibration(trainer: Trainer, data: DataSet, folder: Path) -> None:
    """Write the predictions of a trained network for the test set, if the network was not trained on it."""
    num_classes, targets = len(data.class_names), trainer.learner.task.labeled_targets
    y, probs = data.test_y[:0], torch.zeros(0, num_classes)
    if not data.test_is_trained_on:
        y, probs = data.test_y, trainer.test_predictions().probs.cpu()
    labels = np.zeros(0, np.int64) if targets is None else targets.cpu().numpy()
    num_labels = np.bincount(labels, minlength=num_classes)
    write_calibration(folder, CalibrationData(y.numpy(), probs.numpy().astype(np.float32), num_labels))
