"""The metrics of an evaluation, as Markdown, from the table of metrics in the code."""

from __future__ import annotations

from mnar.training.metrics import METRICS


def markdown() -> str:
    """One row per metric."""
    lines = ["| entry | one value per class | in `metrics.jsonl` | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS.values():
        told = " ".join((metric.compute.__doc__ or "").split("\n\n")[0].split())
        meaning = f"{metric.title}. {told}" if told else metric.title
        flags = " | ".join("yes" if flag else "no" for flag in (metric.is_per_class, metric.is_recorded))
        lines.append(f"| `{metric.name}` | {flags} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
