"""Summarise the evaluations of a run: the figures of its headline, and warnings about its pseudo-labels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, TypeVar

from mnar.training.metrics import overall_metrics

HEADLINE_EVALUATIONS = 20
STARVED_SHARE_OF_RUN = 0.1  # a class without a pseudo-label for this share of the steps is worth a warning
COLLAPSED_MASK_RATE = 0.01
Value = TypeVar("Value")
Headline = dict[str, Value]  # the figures that summarise a run, by name: floats, or spreads over several runs

ACCURACY, FINAL, BEST = "accuracy_median_last_20", "accuracy_final", "accuracy_best_on_test"


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
        raise ValueError("the run has not reached its first evaluation (train.eval_every); continue the run first")
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


def _only_prediction(lines: Sequence[dict[str, Any]], class_names: Sequence[str]) -> str | None:
    """The only class that has a recall above 0 in all these evaluations, or None if there are others."""
    recalls = [line["test"].get("recall", ()) for line in lines]
    known = {name for recall in recalls for name, value in zip(class_names, recall, strict=False) if value}
    return known.pop() if len(known) == 1 and len(class_names) > 1 else None
