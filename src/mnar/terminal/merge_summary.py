"""What `mnar merge` prints: how many labels were merged, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from mnar.trained.merge import MergeReport
from mnar.trained.merge.plan import Outcome

MOST_LISTED, MOST_CLASSES = 10, 50

# What is left out, in this order: the outcome, what the samples are, and the text for one sample.
LEFT_OUT: tuple[tuple[str, str, Callable[[Outcome], str] | None], ...] = (
    ("unchanged", "samples that have the label already", None),
    ("cancelled", "samples that the annotators skipped", None),
    ("empty", "samples without a label in the annotations", None),
    (
        "conflict",
        "samples with another label in the data, which was kept (--overwrite replaces it)",
        lambda entry: f"{entry.existing} in the data, {entry.label} in the annotations",
    ),
    (
        "disagreement",
        "samples about which the annotators disagree (--majority merges the label of more than half)",
        lambda entry: entry.label,
    ),
    ("missing", "annotations for samples that are not in the data", lambda entry: entry.detail),
)


def merge_lines(report: MergeReport, source: Path, *, dry_run: bool) -> Iterator[str]:
    """Yield the lines that describe a merge."""
    plan = report.plan
    yield from report.notes
    merged = plan.with_outcome("merged")
    counts = Counter(entry.label for entry in merged)
    per_class = ", ".join(f"{number:,} of class {label}" for label, number in sorted(counts.items())[:MOST_CLASSES])
    verb = "that would be merged" if dry_run else "merged"
    yield f"labels {verb} into {source}: {len(merged):,}" + (f" ({per_class})" if per_class else "")
    if dry_run:
        yield from _listed(merged, lambda entry: f"{entry.existing or 'no label'} -> {entry.label}")
    if plan.new_classes:
        yield f"new classes: {', '.join(plan.new_classes)}"
    replaced = sum(bool(entry.existing) for entry in merged)
    if replaced:
        yield f"of these, labels that replace another label: {replaced:,}"
    for outcome, what, describe in LEFT_OUT:
        entries = plan.with_outcome(outcome)
        if entries:
            yield f"{what}: {len(entries):,}"
            if describe:
                yield from _listed(entries, describe)
    if plan.num_repeated:
        yield f"annotations for a sample that another annotation names too: {plan.num_repeated:,}"
    if report.backups:
        yield f"backup: {', '.join(map(str, report.backups))}"


def _listed(entries: list[Outcome], describe: Callable[[Outcome], str]) -> Iterator[str]:
    """Yield a line for each of the first samples."""
    for entry in entries[:MOST_LISTED]:
        name = ", ".join(filter(None, (f"row {entry.row}" if entry.row else "", entry.sample)))
        yield f"  {name}: {describe(entry)}"
    if len(entries) > MOST_LISTED:
        yield f"  and {len(entries) - MOST_LISTED:,} more"
