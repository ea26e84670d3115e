"""calibration.npz: what honest probabilities need besides the model of a run.

y, probs          classes, and predictions for labelled samples that the model was not trained on
repeats           how often every label is in y: the cross-validation of the portfolio predicts each label twice
num_labels        [k] number of labels of each class that the model was trained on
pool_shares       [3, k] estimated class shares of the pool, and the ends of their intervals; missing if unknown
digest            the digest of the other arrays; earlier versions wrote none
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mnar.atomic_write import Changed
from mnar.run.file_names import CALIBRATION, resume_command
from mnar.run.sealed_npz import read_sealed_npz, write_sealed_npz
from mnar.training.metrics_line import predict_test_set
from mnar.training.trainer import Trainer
from mnar.types import DataSet

Floats = npt.NDArray[np.float64]
TOLERANCE = 1e-3  # of sums that are 1 up to rounding; predictions may be of half precision


class CalibrationData(NamedTuple):
    """The content of calibration.npz. Without labels that the model was not trained on, y and probs are empty."""

    y: npt.NDArray[np.int64]  # [m]
    probs: npt.NDArray[Any]  # [m, k]; of a network: its softmax; of the portfolio: as if classes were equally frequent
    num_labels: npt.NDArray[np.int64]  # [k]
    repeats: int = 1
    pool_shares: Floats | None = None  # [3, k]: shares, low ends and high ends


def write_calibration(folder: Path, data: CalibrationData) -> None:
    """Write the file."""
    write_sealed_npz(folder / CALIBRATION, {name: value for name, value in data._asdict().items() if value is not None})


def read_calibration(folder: Path, num_classes: int | None = None) -> CalibrationData | None:
    """Read and check the file; None if the run has none, because it was written by an older version.

    num_classes    the number of classes of the model, if it is known
    """
    path = folder / CALIBRATION
    try:
        data = _read(path)
        _check(data, num_classes)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); write it again with `{resume_command(folder)}`") from error
    return data


def _read(path: Path) -> CalibrationData:
    try:
        data = CalibrationData(**read_sealed_npz(path, needs_digest=False))
    except (FileNotFoundError, Changed):
        raise
    except (ValueError, TypeError) as error:
        raise ValueError("it is not a complete .npz file of the arrays that mnar writes") from error
    repeats = np.asarray(data.repeats)
    if repeats.shape != () or repeats.dtype.kind not in "iu":
        raise ValueError("repeats is not a whole number")
    return data._replace(repeats=int(repeats))


def _check(data: CalibrationData, num_classes: int | None) -> None:
    """Raise a ValueError that names the first array that cannot be right."""
    y, probs, num_labels, repeats, pool_shares = data
    k = probs.shape[1] if probs.ndim == 2 and num_classes is None else num_classes or 0
    if probs.ndim != 2 or probs.dtype.kind != "f" or k < 1 or probs.shape[1] != k:
        of_model = f", of which the model has {num_classes}" if num_classes else ""
        raise ValueError(
            f"probs has shape {probs.shape} and type {probs.dtype}, not one float per sample and class{of_model}"
        )
    if y.dtype.kind not in "iu" or y.shape != (len(probs),):
        raise ValueError(f"y has shape {y.shape} and type {y.dtype}, not one whole number for each row of probs")
    if ((y < 0) | (y >= k)).any():
        raise ValueError(f"y contains numbers that are not classes from 0 to {k - 1}")
    # a comparison with NaN is false
    if not ((probs >= 0) & (probs <= 1 + TOLERANCE)).all() or not (np.abs(probs.sum(1) - 1) <= TOLERANCE).all():
        raise ValueError("the rows of probs are not probabilities that sum to 1")
    if num_labels.dtype.kind not in "iu" or num_labels.shape != (k,) or (num_labels < 0).any():
        raise ValueError(f"num_labels is not one number of labels for each of the {k} classes")
    if repeats < 1 or len(y) % repeats:
        raise ValueError(f"repeats is {repeats}, which does not divide the {len(y)} rows of y")
    if pool_shares is not None:
        _check_shares(pool_shares, k)


def _check_shares(pool_shares: npt.NDArray[Any], k: int) -> None:
    if pool_shares.dtype.kind != "f" or pool_shares.shape != (3, k):
        raise ValueError(
            f"pool_shares has shape {pool_shares.shape} and type {pool_shares.dtype}, not 3 floats for each of the "
            f"{k} classes"
        )
    is_share = (pool_shares >= -TOLERANCE) & (pool_shares <= 1 + TOLERANCE)
    is_unknown = np.isnan(pool_shares[0])  # the share of a class without labels
    if not (is_share | (np.isnan(pool_shares) & is_unknown)).all() or not np.nansum(pool_shares[0]) > 0:
        raise ValueError("pool_shares are not shares from 0 to 1, of which one is positive")


def write_network_calibration(trainer: Trainer, data: DataSet, folder: Path) -> None:
    """Write the predictions of a trained network for the test set, if the network was not trained on it."""
    num_classes, targets = len(data.class_names), trainer.learner.task.labeled_targets
    y, probs = data.test_y[:0], torch.zeros(0, num_classes)
    if not data.test_is_trained_on:
        y, probs = data.test_y, predict_test_set(trainer).probs.cpu()
    labels = np.zeros(0, np.int64) if targets is None else targets.cpu().numpy()
    num_labels = np.bincount(labels, minlength=num_classes)
    write_calibration(folder, CalibrationData(y.numpy(), probs.numpy().astype(np.float32), num_labels))
