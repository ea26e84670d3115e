"""Evaluate a model and its pseudo-labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mnar.training.metrics import Predictions
from mnar.types import Selection

BATCH = 1000  # samples per forward pass


@torch.no_grad()
def predictions_on(
    model: nn.Module, samples: Tensor, targets: Tensor, prepare: Callable[[Tensor], Tensor], *, num_classes: int
) -> Predictions:
    """The predictions of a model in evaluation mode; `prepare` turns samples into the model's input."""
    probs = torch.cat([model(prepare(chunk)).float().softmax(1) for chunk in samples.split(BATCH)])
    confusion = count_pairs(targets, probs.max(1).indices, num_classes, num_classes)
    return Predictions(confusion.cpu().double(), probs, targets)


def count_pairs(rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """Count how often each (row, column) pair occurs, [num_rows, num_columns]."""
    counts = torch.zeros(num_rows, num_columns, dtype=torch.int64, device=rows.device)
    add_pairs(counts, rows, columns)
    return counts


def add_pairs(counts: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Add each (row, column) pair to `counts` in place, without a host sync."""
    cells = torch.add(columns, rows, alpha=counts.shape[1])
    counts.view(-1).scatter_(0, cells, 1, reduce="add")


def pseudo_label_scores(confusion: Tensor) -> dict[str, Any]:
    """The quality of pseudo-labels, from counts [true class, pseudo-label].

    The last column counts the pseudo-labels that were not accepted. A row after the classes counts the samples whose
    true class is unknown; these samples contribute to the shares only.
    """
    accepted = confusion.double()[:, :-1]
    known = accepted[: accepted.shape[1]]
    right, per_label, per_class = known.diagonal(), known.sum(0), known.sum(1)
    return {
        "accepted": int(accepted.sum()),
        "share": (accepted.sum(0) / accepted.sum().clamp(min=1)).tolist(),
        "error": _ratios(per_class - right, per_class),  # of the samples of a class: labelled as another class
        "precision": _ratios(right, per_label),
    }


def selection_scores(selection: Selection, targets: Tensor, num_classes: int) -> dict[str, Any]:
    """The quality of the labels that were selected between two generations; `targets` are the true classes, [n].

    A target below 0 is unknown.
    """
    labels = torch.full_like(targets, num_classes)  # the extra class marks samples that were not selected
    labels[selection.rows] = selection.labels
    truth = torch.where(targets < 0, num_classes, targets)
    return pseudo_label_scores(count_pairs(truth, labels, num_classes + 1, num_classes + 1).cpu())


def as_lists(matrix: Tensor) -> list[list[float]]:
    """Nested lists for JSON. A matrix of whole numbers is written as integers, even if its type is float."""
    counts = matrix.long()
    lists: list[list[float]] = (counts if bool((counts == matrix).all()) else matrix).tolist()
    return lists


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [p / w if w > 0 else None for p, w in zip(part.tolist(), whole.tolist(), strict=True)]
