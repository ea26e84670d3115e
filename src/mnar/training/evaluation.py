"""Evaluate a model and its pseudo-labels, and summarise the evaluations of a run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mnar.training.metrics import Predictions, overall_metrics
from mnar.types import Selection

BATCH = 1000  # samples per forward pass
HEADLINE_EVALUATIONS = 20
STARVED_SHARE_OF_RUN = 0.1  # a class without a pseudo-label for this share of the steps is worth a warning
COLLAPSED_MASK_RATE = 0.01
Value = TypeVar("Value")
Headline = dict[str, Value]  # the figures that summarise a run, by name: floats, or spreads over several runs

ACCURACY, FINAL, BEST = "accuracy_median_last_20", "accuracy_final", "accuracy_best_on_test"


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


def _only_prediction(lines: Sequence[dict[str, Any]], class_names: Sequence[str]) -> str | None:
    """The only class that has a recall above 0 in all these evaluations, or None if there are others."""
    recalls = [line["test"].get("recall", ()) for line in lines]
    known = {name for recall in recalls for name, value in zip(class_names, recall, strict=False) if value}
    return known.pop() if len(known) == 1 and len(class_names) > 1 else None


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [p / w if w > 0 else None for p, w in zip(part.tolist(), whole.tolist(), strict=True)]


def headline_lines(lines: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The evaluations that the headline is the median of: the last 20 of the final generation.

    With early stopping, only the evaluations of the model that was kept count.
    """
    last = lines[-1]
    since = last["step"] - last.get("validation", {}).get("steps_since", last["step"])
    of_final_model = [line for line in lines if _same_generation(line, last) and line["step"] >= since]
    return of_final_model[-HEADLINE_EVALUATIONS:]


def _same_generation(line: dict[str, Any], other: dict[str, Any]) -> bool:
    return line.get("generation") == other.get("generation")


def headline(lines: Sequence[dict[str, Any]], test_counts: Sequence[int] = ()) -> Headline[float]:
    """The figures that summarise a run: the median of every overall metric, and the final and the best accuracy.

    `test_counts` are the test samples per class; without them, metrics that depend on these counts are left out.
    """
    if not lines:
        raise ValueError("no evaluation to summarise: the run has not reached its first one (train.eval_every)")
    last, latest = lines[-1], headline_lines(lines)
    figures = {
        ACCURACY: statistics.median(line["test"]["accuracy"] for line in latest),
        FINAL: last["test"]["accuracy"],
        BEST: max(line["test"]["accuracy"] for line in lines if _same_generation(line, last)),
    }
    for metric in overall_metrics():
        values = [metric.value(line["test"], test_counts) for line in latest]
        if metric.name != "accuracy" and None not in values:
            figures[metric.name] = statistics.median(values)
    return figures


def headline_figures() -> list[str]:
    """The names of all figures that `headline` can return."""
    return [ACCURACY, FINAL, BEST, *(metric.name for metric in overall_metrics() if metric.name != "accuracy")]


def headline_name(metric: str) -> str:
    """The name of the figure that is the median of a metric."""
    return ACCURACY if metric == "accuracy" else metric


def health_warnings(
    lines: Sequence[dict[str, Any]], iterations: int, class_names: Sequence[str], *, guided: bool
) -> dict[str, str]:
    """Warnings about the pseudo-labels of the last evaluations, by kind."""
    patience = STARVED_SHARE_OF_RUN * iterations
    if len(lines) < 2 or "pseudo" not in lines[-1] or lines[-1]["step"] < patience:
        return {}
    now = lines[-1]["step"]
    num_recent = max(2, sum(line["step"] > now - patience for line in lines))
    earlier, recent = lines[:-num_recent], lines[-num_recent:]
    since = earlier[-1]["step"] if earlier else 0
    period = f"from step {since} to {now}"
    if only := _only_prediction(recent, class_names):
        # A threshold cannot help a model that knows one class; nor can a guidance.
        return {
            "one class": f"the model predicts {only} and hardly any other class {period}; if this continues, try a "
            "lower learning rate (--set train.lr=...) or more labels of the other classes"
        }
    warnings = {}
    shares = zip(*(line["pseudo"]["share"] for line in recent), strict=True)
    starved = [name for name, share in zip(class_names, shares, strict=True) if not any(share)]
    if starved:
        remedies = [] if guided else ["a guidance (--guidance prg or prg_last)"]
        remedies.append("a lower learner.threshold" if "mask_rate" in lines[-1]["train"] else "more labels")
        more = f" and {len(starved) - 5} more" if len(starved) > 5 else ""
        warnings["starved"] = (
            f"no pseudo-label for {', '.join(starved[:5])}{more} {period}: the model may be forgetting these classes; "
            f"if this continues, try {' or '.join(remedies)}"
        )
    rates = [line["train"].get("mask_rate", 1.0) for line in recent]
    if max(rates) < COLLAPSED_MASK_RATE:
        warnings["collapsed"] = (
            f"the mask rate has collapsed, {rates[-1]:.2%} {period}: almost no unlabelled sample is used; "
            "try more steps, a lower learner.threshold or more labels"
        )
    return warnings
