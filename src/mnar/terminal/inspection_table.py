"""Show an inspection on the terminal: a table with bars, then explanations in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mnar.own_data.inspection.inspection import ClassFindings, Estimate, Inspection, ProbeFindings
from mnar.own_data.inspection.recommend import SIGNIFICANT

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_WIDTH = 8
EIGHTHS = " ▏▎▍▌▋▊▉"
MOST_CLASSES = 50  # with more classes, only those whose shares differ most are listed
WEAK_PROBE = 0.2  # share of the way from guessing (0) to perfect (1), in balanced accuracy; below, the probe is weak


def inspection_table(inspection: Inspection) -> RenderableType:
    """Return the table and the sentences. They fit in 80 columns; class names wrap after 20 characters."""
    # imported here because the import takes a while, and most uses of mnar do not need it
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    listed = _listed_classes(inspection)
    ends = [e.high for c in listed for e in (c.pool_share, c.pool_share_bbse) if e]
    top = max([*ends, *(c.labeled_share for c in listed)], default=0.0) or 1.0

    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("class", overflow="fold", max_width=20)
    grid.add_column("labels", justify="right", no_wrap=True)
    grid.add_column("share", justify="right", no_wrap=True)
    grid.add_column(no_wrap=True, width=BAR_WIDTH)
    grid.add_column("pool", justify="right", no_wrap=True)
    grid.add_column("95 %", justify="right", no_wrap=True)
    grid.add_column(no_wrap=True, width=BAR_WIDTH)
    grid.add_column("1 in", justify="right", no_wrap=True)
    for c in listed:
        bar = share_bar(c.labeled_share, top)
        pool = _pool_cells(c.pool_share, top)
        grid.add_row(Text(c.name), f"{c.num_labels:,}", f"{c.labeled_share:.1%}", bar, *pool, _one_in(c))
        if c.pool_share_bbse:
            grid.add_row("  by BBSE", "", "", "", *_pool_cells(c.pool_share_bbse, top), "", style="dim")
    sentences = [Text(f"\n{sentence}") for sentence in sentences_of(inspection)]
    return Group(Text(_headline(inspection) + "\n"), grid, *sentences)


def share_bar(share: float, top: float) -> str:
    """Draw a share as a bar, precise to an eighth of a block; `top` is the share of a full bar."""
    whole, eighths = divmod(round(8 * BAR_WIDTH * share / top), 8)
    return ("█" * whole + EIGHTHS[eighths]).rstrip()


def interval_bar(estimate: Estimate, top: float) -> str:
    """Draw an interval as a bar that is solid up to the low end and shaded up to the high end."""
    solid, reach = (round(BAR_WIDTH * end / top) for end in (estimate.low, estimate.high))
    return "█" * solid + "▒" * (reach - solid)


def _pool_cells(estimate: Estimate | None, top: float) -> tuple[str, str, str]:
    if estimate is None:
        return "?", "", ""
    return f"{estimate.value:.1%}", f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f}", interval_bar(estimate, top)


def _one_in(c: ClassFindings) -> str:
    if c.labeled_one_in is None:
        return "?" if c.num_labels else "never"
    return f"{c.labeled_one_in.value:,.{1 if c.labeled_one_in.value < 100 else 0}f}"


def _listed_classes(inspection: Inspection) -> list[ClassFindings]:
    if len(inspection.classes) <= MOST_CLASSES:
        return list(inspection.classes)

    def difference(c: ClassFindings) -> float:
        return abs(c.pool_share.value - c.labeled_share) if c.pool_share else 1.0

    return sorted(inspection.classes, key=difference, reverse=True)[:MOST_CLASSES]


def _headline(inspection: Inspection) -> str:
    num_rows = inspection.num_labeled + inspection.num_unlabeled
    what = "images" if inspection.kind == "images" else "rows"
    return (
        f"{num_rows:,} {what}, {inspection.num_labeled:,} with a label and {inspection.num_unlabeled:,} without; "
        f"{len(inspection.classes)} classes"
    )


def sentences_of(inspection: Inspection) -> Iterator[str]:
    """Yield sentences that explain the numbers, say what cannot be estimated, and recommend a method."""
    shares_are_known = any(c.pool_share for c in inspection.classes)
    if shares_are_known:
        yield (
            "share: share of the labels. pool: estimated share of the unlabelled rows, with its 95 % interval; the bar "
            "is solid up to the low end and shaded up to the high end. 1 in: estimated number of rows of the class in "
            "all data, per label."
        )
    if len(inspection.classes) > MOST_CLASSES:
        yield f"Only the {MOST_CLASSES} classes whose shares differ most are listed; inspect.json has all classes."
    if shares_are_known:
        yield (
            "The estimate assumes that labelled and unlabelled rows of the same class look alike. If they do not, the "
            "estimate can be far off, and the interval does not show this."
        )
    if any(c.pool_share_bbse for c in inspection.classes):
        yield (
            "The two estimates, EM and BBSE, differ by more than chance. This is a sign that the assumption may not "
            "hold here, so treat both with caution."
        )
    yield from inspection.cannot_tell
    if inspection.probe is not None:
        yield _about_probe(inspection.probe, sum(c.num_labels > 0 for c in inspection.classes))
    if inspection.at_random is not None:
        p_value = inspection.at_random.p_value
        verdict = "No" if p_value < SIGNIFICANT else "There is no evidence against it"
        yield f"Are labels missing at random? {verdict} (p = {p_value:.2g}). {inspection.at_random.assumptions}"
    if inspection.recommendation is not None:
        learner, guidance = inspection.recommendation.learner, inspection.recommendation.guidance
        yield (
            "Recommended: `mnar train` without options, which tries several classifiers. For one network: --learner "
            f"{learner} --guidance {guidance}, because {inspection.recommendation.reason}."
        )
    for note in inspection.notes:
        yield f"Note: {note}."


def _about_probe(probe: ProbeFindings, num_classes: int) -> str:
    guessing = 1 / num_classes
    is_weak = probe.balanced_accuracy - guessing < WEAK_PROBE * (1 - guessing)
    verdict = (
        " The probe can hardly distinguish the classes, so do not rely on the estimated shares." if is_weak else ""
    )
    return (
        f"All estimates come from a quick classifier, the probe ({probe.model}). On labelled rows that it was not "
        f"trained on, the probe has an accuracy of {probe.accuracy:.1%} and a balanced accuracy of "
        f"{probe.balanced_accuracy:.1%} (guessing: {guessing:.1%}).{verdict}"
    )
