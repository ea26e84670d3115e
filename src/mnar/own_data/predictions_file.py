"""predictions.csv: a label and a confidence for every sample without a label."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.atomic_write import write_atomically
from mnar.datasets.user_files.spreadsheet_cells import safe_cell
from mnar.types import DataSet

PREDICTIONS = "predictions.csv"


def write_predictions_file(
    folder: Path,
    data: DataSet,
    rows: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    confidences: npt.NDArray[np.float64],
) -> None:
    """Write one line for each of the rows: its number in the file, its name or id, the label and the confidence.

    A cell that a spreadsheet would run as a formula begins with a quote.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["row", data.id_name or "sample", "label", "confidence"])
    names = data.row_names if data.ids is None else data.ids
    for row, label, confidence in zip(rows.tolist(), labels.tolist(), confidences.tolist(), strict=True):
        number = data.row_numbers[row] if len(data.row_numbers) else row + 1
        writer.writerow([number, safe_cell(names[row]), safe_cell(data.class_names[label]), f"{confidence:.4f}"])
    write_atomically(folder / PREDICTIONS, text.getvalue())
