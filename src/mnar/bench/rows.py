"""Cells in words, ours beside the paper's: what the terminal and the files of a bench have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mnar.bench.cell import Cell
from mnar.recipes import TITLES
from mnar.report import OF_SHORT_RUNS
from mnar.training.evaluation import HEADLINE_EVALUATIONS, Headline

NONE = "–"
HOW_TO_READ = (
    f"Accuracy and GM (geometric mean of the recalls): median of the last {HEADLINE_EVALUATIONS} evaluations (of all, "
    "where a run has fewer), mean ± sd over n seeds; best on test picks the evaluation by the test set itself."
)
AFTER_A_FAILURE = (
    "Once the cause is mended, the same command goes on; to train a run anew, remove its folder (runs/RECIPE/seed-N) "
    "first."
)


class CellRow(NamedTuple):
    """A cell in words; accuracy is the median of the last 20 evaluations, GM likewise."""

    setting: str
    method: str
    accuracy: str
    paper: str
    geometric_mean: str
    paper_gm: str
    final: str
    best_on_test: str
    n: str
    minutes: str
    images_per_second: str


HEADINGS = CellRow(
    "setting", "method", "accuracy, %", "paper", "GM, %", "paper", "final", "best on test", "n", "minutes", "images/s"
)


def row(cell: Cell) -> CellRow:
    _, setting, method = cell.name.split("/", 2)
    percents = [spread.percent for spread in cell.headline] if cell.headline else [NONE] * len(Headline._fields)
    percent = Headline(*percents)
    return CellRow(
        setting=setting,
        method=method,
        accuracy=percent.accuracy_median_last_20,
        paper=cell.recipe.printed,
        geometric_mean=percent.geometric_mean,
        paper_gm=cell.recipe.printed_geometric_mean,
        final=percent.accuracy_final,
        best_on_test=percent.accuracy_best_on_test,
        n=str(len(cell.counted)) if cell.num_done == len(cell.folders) else f"{cell.num_done} of {len(cell.folders)}",
        minutes=NONE if cell.minutes is None else _number(cell.minutes),
        images_per_second=f"{cell.images_per_second:,.0f}" if cell.images_per_second else NONE,
    )


def _number(value: float) -> str:
    """With at least two digits that count."""
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def how_to_read(cells: Iterable[Cell]) -> str:
    return f"{HOW_TO_READ} {OF_SHORT_RUNS}" if any(cell.is_short for cell in cells) else HOW_TO_READ


def by_table(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """By title, in the order of the tables."""
    tables: dict[str, list[Cell]] = {}
    for cell in cells:
        tables.setdefault(TITLES[cell.table], []).append(cell)
    return tables


def filled_columns(rows: Sequence[CellRow]) -> list[str]:
    """Those in which some row has something."""
    return [column for column in CellRow._fields[2:] if any(getattr(line, column) != NONE for line in rows)]


def what_is_missing(cells: Sequence[Cell]) -> list[str]:
    """What is not done, each reason why something failed, once, and what to do about it."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        for reason in dict.fromkeys(cell.failures.values()):
            reasons.setdefault(reason, []).append(cell.name)
    missing = [f"{cell.name}: {cell.missing}" for cell in cells if cell.missing]
    failed = [f"failed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [*missing, *failed, *([AFTER_A_FAILURE] if failed else [])]


def notes(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """What to know before quoting the paper's figures, and for which cells."""
    named: dict[str, list[str]] = {}
    for cell in cells:
        if cell.recipe.note:
            named.setdefault(cell.recipe.note, []).append(cell.name.partition("/")[2])
    return named


def circumstances(cells: Sequence[Cell]) -> str:
    """Steps, hardware and commits of all runs."""
    runs = [result for cell in cells for result in cell.results]
    steps = sorted({result.iterations for result in runs})
    devices = sorted({result.device for result in runs})
    commits = sorted({result.commit for result in runs if result.commit})
    shorter = " (shorter than the recipes' own)" if any(cell.is_shortened for cell in cells) else ""
    words = [f"steps: {', '.join(f'{n:,}' for n in steps)}{shorter}" if steps else "", *devices]
    words += [f"commit {', '.join(commits)}" if commits else ""]
    return "; ".join(word for word in words if word)
