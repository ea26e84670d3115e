"""What a bench came to, ours beside the paper's: rows for the terminal, and results as JSON, CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from mnar.bench import FIGURES, Cell
from mnar.checkpoint import write_atomically
from mnar.recipes import TITLES
from mnar.report import read_run, render

RESULTS = "results"
NONE = "–"
HOW_TO_READ = (
    "Accuracy and GM (geometric mean of the recalls): median of the last 20 evaluations, mean ± sd over n seeds."
)
PerClass = list[dict[str, Any]]  # for each step that the paper printed: ours and its own
CLASS_SCORES = "precision / recall of the first seed (the paper's), %"
INDENT, BETWEEN = "  ", 2  # of methods below their setting; cells between two columns, and at the edges together
NEAR = 0.05  # how far an evaluation may be from the step that a figure was printed for, as a share of it


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
    spread, speeds = cell.spreads, [r.images_per_second for r in cell.counted if r.images_per_second]
    percent = {figure: spread[figure].percent if figure in spread else NONE for figure in FIGURES}
    return CellRow(
        setting=setting,
        method=method,
        accuracy=percent["accuracy_median_last_20"],
        paper=cell.recipe.printed,
        geometric_mean=percent["geometric_mean"],
        paper_gm=cell.recipe.printed_geometric_mean,
        final=percent["accuracy_final"],
        best_on_test=percent["accuracy_best_on_test"],
        n=str(len(cell.counted)) if cell.num_done == len(cell.folders) else f"{cell.num_done} of {len(cell.folders)}",
        minutes=f"{_mean(r.minutes for r in cell.counted):.1f}" if cell.counted else NONE,
        images_per_second=f"{_mean(speeds):,.0f}" if speeds else NONE,
    )


def by_table(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """By title, in the order of the tables."""
    tables: dict[str, list[Cell]] = {}
    for cell in cells:
        tables.setdefault(TITLES[cell.table], []).append(cell)
    return tables


def terminal_tables(title: str, cells: Sequence[Cell], width: int) -> list[Table]:
    """One table, or several where the terminal is too narrow for all the columns."""
    rows = [row(cell) for cell in cells]
    columns = _columns(rows)
    width_of = {
        column: max(cell_len(getattr(line, column)) for line in [HEADINGS, *rows]) for column in CellRow._fields
    }
    first = max(width_of["setting"], width_of["method"] + len(INDENT))
    groups: list[list[str]] = [[]]
    for column in columns:
        widths = [first, *(width_of[name] for name in [*groups[-1], column])]
        if groups[-1] and sum(widths) + BETWEEN * len(widths) > width:
            groups.append([])
        groups[-1].append(column)
    return [_terminal_table("" if i else title, rows, group) for i, group in enumerate(groups)]


def _columns(rows: Sequence[CellRow]) -> list[str]:
    """Those in which some row has something."""
    return [column for column in CellRow._fields[2:] if any(getattr(line, column) != NONE for line in rows)]


def _terminal_table(title: str, rows: Sequence[CellRow], columns: Sequence[str]) -> Table:
    """Settings stand above their methods."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(HEADINGS.method, no_wrap=True)
    for column in columns:
        table.add_column(getattr(HEADINGS, column), justify="right", no_wrap=True)
    for setting, group in groupby(rows, key=lambda line: line.setting):
        table.add_row(f"[bold]{escape(setting)}[/bold]")
        for line in group:
            table.add_row(f"{INDENT}{escape(line.method)}", *(getattr(line, column) for column in columns))
    return table


def shown(cells: Sequence[Cell], width: int) -> Iterator[str | Table]:
    """All of it for a terminal."""
    for title, group in by_table(cells).items():
        yield from terminal_tables(title, group, width)
    yield from map(escape, what_is_missing(cells))
    yield escape(circumstances(cells))
    yield f"[dim]{HOW_TO_READ}[/dim]"


def what_is_missing(cells: Sequence[Cell]) -> list[str]:
    """What is not done, and each reason why something failed, once."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        for reason in dict.fromkeys(cell.failures.values()):
            reasons.setdefault(reason, []).append(cell.name)
    missing = [f"{cell.name}: {cell.missing}" for cell in cells if cell.missing]
    return missing + [f"failed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]


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


def write_results(cells: Sequence[Cell], folder: Path) -> None:
    """All four, each whole or as it was."""
    per_class = {cell.name: scores for cell in cells if (scores := _per_class(cell))}
    contents = {
        ".json": json.dumps({"cells": [_entry(cell, per_class.get(cell.name)) for cell in cells]}, indent=1),
        ".csv": _csv(cells),
        ".md": _markdown(cells, per_class),
        ".html": _html(cells, per_class),
    }
    for kind, content in contents.items():
        write_atomically(folder / f"{RESULTS}{kind}", content)


def _entry(cell: Cell, per_class: PerClass | None) -> dict[str, Any]:
    recipe = cell.recipe
    return {
        "recipe": cell.name,
        "table": TITLES[cell.table],
        "n": len(cell.counted),
        "done": cell.num_done,
        "ours_percent": {
            figure: {name: None if value is None else 100 * value for name, value in asdict(spread).items()}
            for figure, spread in cell.spreads.items()
        },
        "paper_percent": {
            "accuracy": recipe.accuracy,
            "accuracy_sd": recipe.deviation,
            "geometric_mean": recipe.geometric_mean,
            "geometric_mean_sd": recipe.geometric_mean_deviation,
        },
        "note": recipe.note,
        "per_class": per_class,
        "runs": [asdict(result) for result in cell.results],
        "failures": cell.failures,
    }


def _csv(cells: Sequence[Cell]) -> str:
    """Numbers in per cent, as the paper's."""
    figures = [f"{figure}{part}" for figure in FIGURES for part in ("", "_sd")]
    paper = ["paper_accuracy", "paper_accuracy_sd", "paper_geometric_mean", "paper_geometric_mean_sd"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["recipe", "n", "done", *figures, *paper, "minutes_a_run", "images_per_second", "missing"])
    for cell in cells:
        spreads = cell.spreads.values() or [None] * len(FIGURES)
        ours = [value for spread in spreads for value in ((spread.mean, spread.sd) if spread else (None, None))]
        speeds = [r.images_per_second for r in cell.counted if r.images_per_second]
        writer.writerow(
            [
                cell.name,
                len(cell.counted),
                cell.num_done,
                *(None if value is None else round(100 * value, 4) for value in ours),
                cell.recipe.accuracy,
                cell.recipe.deviation,
                cell.recipe.geometric_mean,
                cell.recipe.geometric_mean_deviation,
                round(_mean(r.minutes for r in cell.counted), 3) if cell.counted else None,
                round(_mean(speeds), 1) if speeds else None,
                cell.missing,
            ]
        )
    return file.getvalue()


def _markdown(cells: Sequence[Cell], per_class: dict[str, PerClass]) -> str:
    lines = ["# Results", "", circumstances(cells), "", HOW_TO_READ, ""]
    for title, group in by_table(cells).items():
        lines += [f"## {title}", "", *_table(HEADINGS, [row(cell) for cell in group]), ""]
        for name in [cell.name for cell in group if cell.name in per_class]:
            headings, *rows = _class_rows(per_class[name])
            lines += [f"{name}: {CLASS_SCORES}", "", *_table(headings, rows), ""]
        lines += [f"- {', '.join(names)}: {note}" for note, names in notes(group).items()]
        lines += [f"- {missing}" for missing in what_is_missing(group)]
        lines += [""]
    return "\n".join(lines)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *rows)]


def _class_rows(scores: PerClass) -> list[list[str]]:
    """The headings and a row a class."""
    headings = ["class", *(f"step {at['step']:,}" for at in scores)]
    num_classes = len(scores[0]["paper"]["recall"])
    return [headings, *([str(i + 1), *(_class_score(at, i) for at in scores)] for i in range(num_classes))]


def _class_score(at: dict[str, Any], i: int) -> str:
    ours, paper = at["ours"], at["paper"]
    known = f"{ours['precision'][i]:.1f} / {ours['recall'][i]:.1f}" if ours else NONE
    return f"{known} ({paper['precision'][i]} / {paper['recall'][i]})"


def _per_class(cell: Cell) -> PerClass | None:
    """Precision and recall at the steps that the paper printed them for, per cent; ours of the first seed."""
    if not cell.recipe.per_class or not cell.counted:
        return None
    try:
        lines = read_run(cell.folders[cell.counted[0].seed]).lines
    except ValueError:  # damaged since; its result was kept
        lines = []
    scores = []
    for step, printed in cell.recipe.per_class.items():
        near = [line for line in lines if abs(line["step"] - step) <= NEAR * step]
        nearest = min(near, key=lambda line: abs(line["step"] - step), default=None)
        ours = {name: [100 * value for value in nearest["test"][name]] for name in printed._fields} if nearest else None
        scores.append({"step": step, "ours": ours, "paper": printed._asdict()})
    return scores


def _html(cells: Sequence[Cell], per_class: dict[str, PerClass]) -> str:
    tables = [
        {
            "title": title,
            "rows": [row(cell)._asdict() for cell in group],
            "columns": _columns([row(cell) for cell in group]),
            "per_class": {cell.name: _class_rows(per_class[cell.name]) for cell in group if cell.name in per_class},
            "notes": notes(group),
            "missing": what_is_missing(group),
        }
        for title, group in by_table(cells).items()
    ]
    return render(
        "bench.html.j2",
        headings=HEADINGS._asdict(),
        tables=tables,
        class_scores=CLASS_SCORES,
        how_to_read=HOW_TO_READ,
        circumstances=circumstances(cells),
    )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
