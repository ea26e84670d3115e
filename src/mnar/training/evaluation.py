"""How good a model is, and how good its pseudo-labels are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

BATCH = 1000  # samples that are predicted at a time
NUM_CONFIDENCE_BINS = 15
HEADLINE_EVALUATIONS = 20
STARVED_SHARE_OF_RUN = 0.1  # so long without a pseudo-label is a long time
COLLAPSED_MASK_RATE = 0.01
Value = TypeVar("Value")


class Headline(NamedTuple, Generic[Value]):
    """The figures to quote, of a run or, as spreads, of several. Best-on-test peeks at the test set and says so."""

    accuracy_median_last_20: Value
    accuracy_final: Value
    accuracy_best_on_test: Value
    geometric_mean: Value


@torch.no_grad()
def scores_on(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    prepare: Callable[[Tensor], Tensor],
    *,
    num_classes: int,
) -> tuple[dict[str, Any], Tensor]:
    """Scores of a model in evaluation mode, and its confusion matrix [true class, predicted class].

    Everything is gathered on the device and read once.
    """
    probs = torch.cat([model(prepare(chunk)).float().softmax(1) for chunk in images.split(BATCH)])
    confidence, predicted = probs.max(1)
    confusion = count_pairs(targets, predicted, num_classes, num_classes)
    scores = confusion_scores(confusion.cpu())
    scores["calibration_error"] = calibration_error(confidence, predicted == targets).item()
    return scores, confusion


def count_pairs(rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """How often each (row, column) occurs, [num_rows, num_columns]."""
    counts = torch.zeros(num_rows, num_columns, dtype=torch.int64, device=rows.device)
    add_pairs(counts, rows, columns)
    return counts


def add_pairs(counts: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Count each (row, column) in place, without a host sync."""
    cells = rows * counts.shape[1] + columns
    counts.view(-1).scatter_add_(0, cells, torch.ones_like(cells, dtype=counts.dtype))


def confusion_scores(confusion: Tensor) -> dict[str, Any]:
    """Accuracy, geometric mean of the recalls, and precision, recall and share of the predictions per class.

    A class that is never predicted has precision 0. One that is not in the test set is shown with recall 0, and is
    left out of the geometric mean.
    """
    confusion = confusion.double()
    right, per_class = confusion.diagonal(), confusion.sum(1)
    recall = right / per_class.clamp(min=1)
    precision = right / confusion.sum(0).clamp(min=1)
    return {
        "accuracy": (right.sum() / confusion.sum()).item(),
        "geometric_mean": geometric_mean(recall[per_class > 0].tolist()),
        "precision": precision.tolist(),
        "recall": recall.tolist(),
        "predicted_share": (confusion.sum(0) / confusion.sum()).tolist(),
    }


def geometric_mean(recalls: Sequence[float]) -> float:
    """prod(recall)^(1/k): zero as soon as one class is forgotten."""
    if min(recalls) == 0:
        return 0.0
    return math.exp(statistics.fmean(math.log(recall) for recall in recalls))


def calibration_error(confidence: Tensor, correct: Tensor) -> Tensor:
    """Expected calibration error: |accuracy - confidence| over equal-width bins, weighted by their size."""
    bins = (confidence * NUM_CONFIDENCE_BINS).long().clamp(0, NUM_CONFIDENCE_BINS - 1)
    gap = correct.double() - confidence.double()
    gap_per_bin = torch.zeros(NUM_CONFIDENCE_BINS, dtype=gap.dtype, device=gap.device).scatter_add_(0, bins, gap)
    return gap_per_bin.abs().sum() / len(confidence)


def pseudo_label_scores(confusion: Tensor) -> dict[str, Any]:
    """Quality of pseudo-labels from counts [true class, pseudo-label], the last column holding those not accepted.

    A row beyond the classes holds those whose truth is unknown; they count for the shares alone.
    """
    accepted = confusion.double()[:, :-1]
    known = accepted[: accepted.shape[1]]
    right, per_label, per_class = known.diagonal(), known.sum(0), known.sum(1)
    return {
        "accepted": int(accepted.sum()),
        "share": (accepted.sum(0) / accepted.sum().clamp(min=1)).tolist(),
        "error": _ratios(per_class - right, per_class),  # of what is truly c: labelled as something else
        "precision": _ratios(right, per_label),
    }


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [p / w if w > 0 else None for p, w in zip(part.tolist(), whole.tolist(), strict=True)]


def headline_lines(lines: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The last evaluations, at most 20, of what is handed out: the last generation's, the best model's."""
    last = lines[-1]
    since = last["step"] - last.get("validation", {}).get("steps_since", last["step"])
    of_it = [line for line in lines if _same_generation(line, last) and line["step"] >= since]
    return of_it[-HEADLINE_EVALUATIONS:]


def _same_generation(line: dict[str, Any], other: dict[str, Any]) -> bool:
    return line.get("generation") == other.get("generation")


def headline(lines: Sequence[dict[str, Any]]) -> Headline[float]:
    """From the lines of metrics.jsonl."""
    if not lines:
        raise ValueError("no evaluation to summarise: the run has not reached its first one (train.eval_every)")
    last, latest = lines[-1], headline_lines(lines)
    return Headline(
        accuracy_median_last_20=statistics.median(line["test"]["accuracy"] for line in latest),
        accuracy_final=last["test"]["accuracy"],
        accuracy_best_on_test=max(line["test"]["accuracy"] for line in lines if _same_generation(line, last)),
        geometric_mean=statistics.median(line["test"]["geometric_mean"] for line in latest),
    )


def health_warnings(
    lines: Sequence[dict[str, Any]], iterations: int, class_names: Sequence[str], *, guided: bool
) -> dict[str, str]:
    """What looks wrong with the pseudo-labels of late, in words, by kind."""
    patience = STARVED_SHARE_OF_RUN * iterations
    if len(lines) < 2 or "pseudo" not in lines[-1] or lines[-1]["step"] < patience:
        return {}
    now = lines[-1]["step"]
    num_recent = max(2, sum(line["step"] > now - patience for line in lines))
    earlier, recent = lines[:-num_recent], lines[-num_recent:]
    since = earlier[-1]["step"] if earlier else 0
    period = f"from step {since} to {now}"
    warnings = {}
    shares = zip(*(line["pseudo"]["share"] for line in recent), strict=True)
    starved = [name for name, share in zip(class_names, shares, strict=True) if not any(share)]
    if starved:
        remedies = [] if guided else ["a guidance (--guidance prg or prg_last)"]
        remedies.append("a lower learner.threshold" if "mask_rate" in lines[-1]["train"] else "more labels")
        more = f" and {len(starved) - 5} more" if len(starved) > 5 else ""
        warnings["starved"] = (
            f"no pseudo-label for {', '.join(starved[:5])}{more} {period}: the model may be forgetting them; "
            f"if that goes on, try {' or '.join(remedies)}"
        )
    rates = [line["train"].get("mask_rate", 1.0) for line in recent]
    if max(rates) < COLLAPSED_MASK_RATE:
        warnings["collapsed"] = (
            f"the mask rate has collapsed, {rates[-1]:.2%} {period}: almost nothing unlabelled is used; "
            "try a lower learner.threshold or more labels"
        )
    return warnings
