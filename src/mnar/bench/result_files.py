"""The results of a bench as JSON, CSV, Markdown and HTML files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnar.atomic_write import write_atomically
from mnar.bench.cell import Cell
from mnar.bench.difference_table import ABOUT_DIFFERENCES, difference_headings, difference_table
from mnar.bench.paired import Comparison, comparisons
from mnar.bench.rows import (
    NONE,
    SCHEDULE,
    by_table,
    circumstances,
    filled_columns,
    headings,
    how_to_read,
    notes,
    row,
    what_is_missing,
)
from mnar.bench.run_result import RunResult
from mnar.config import PUBLISHED
from mnar.recipes import TITLES
from mnar.report import render
from mnar.run.reader import read_run
from mnar.training.headline import headline_figures

RESULTS = "results"
PerClass = list[dict[str, Any]]  # for each step in the paper's table: our scores and the paper's
CLASS_SCORES = "precision / recall of the first seed (the paper's), %"
NEAR = 0.05  # an evaluation may differ from the step in the paper's table by this share of the step


def write_results(cells: Sequence[Cell], folder: Path) -> None:
    """Write all four files, each atomically."""
    per_class = {cell.name: scores for cell in cells if (scores := _per_class(cell))}
    contents = {
        ".json": json.dumps(
            {
                "cells": [_entry(cell, per_class.get(cell.name)) for cell in cells],
                "paired_differences": [_difference_entry(compared) for compared in comparisons(cells)],
            },
            indent=1,
        ),
        ".csv": _csv(cells),
        ".md": _markdown(cells, per_class),
        ".html": _html(cells, per_class),
    }
    for kind, content in contents.items():
        write_atomically(folder / f"{RESULTS}{kind}", content)


def _entry(cell: Cell, per_class: PerClass | None) -> dict[str, Any]:
    paper = cell.paper
    return {
        "name": cell.full_name,
        "recipe": cell.name,
        "changed_settings": list(cell.changes),
        "table": TITLES[cell.table],
        "schedules": cell.schedules or [PUBLISHED],
        "seeds": len(cell.folders),
        "done": cell.num_done,
        "n": len(cell.counted),
        "ours_percent": {
            figure: {name: None if value is None else 100 * value for name, value in asdict(spread).items()}
            for figure, spread in (cell.headline or {}).items()
        },
        "paper_percent": {
            "accuracy": paper.accuracy,
            "accuracy_sd": paper.deviation,
            "geometric_mean": paper.geometric_mean,
            "geometric_mean_sd": paper.geometric_mean_deviation,
        },
        "note": paper.note,
        "per_class_percent": per_class,
        "runs": [_run_entry(result) for result in cell.results],
        "failures": cell.failures,
    }


def _run_entry(result: RunResult) -> dict[str, Any]:
    entries = asdict(result)
    figures = {figure: 100 * value for figure, value in entries.pop("headline").items()}
    return {**entries, "ours_percent": figures}


def _difference_entry(compared: Comparison) -> dict[str, Any]:
    return {
        "name": compared.cell.full_name,
        "reference": compared.reference.full_name,
        "seeds": list(compared.seeds),
        "percentage_points": {
            metric: {name: 100 * value for name, value in asdict(difference).items()}
            for metric, difference in compared.differences.items()
        },
    }


def _csv(cells: Sequence[Cell]) -> str:
    """All figures in per cent, as in the paper."""
    figures = [f"{figure}{part}" for figure in headline_figures() for part in ("", "_sd")]
    paper = ["paper_accuracy", "paper_accuracy_sd", "paper_geometric_mean", "paper_geometric_mean_sd"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    others = ["minutes_per_run", "images_per_second", "schedule", "changed_settings", "missing"]
    writer.writerow(["recipe", "seeds", "done", "n", *figures, *paper, *others])
    for cell in cells:
        spreads = [(cell.headline or {}).get(figure) for figure in headline_figures()]
        ours = [value for spread in spreads for value in ((spread.mean, spread.sd) if spread else (None, None))]
        writer.writerow(
            [
                cell.name,
                len(cell.folders),
                cell.num_done,
                len(cell.counted),
                *(None if value is None else round(100 * value, 4) for value in ours),
                cell.paper.accuracy,
                cell.paper.deviation,
                cell.paper.geometric_mean,
                cell.paper.geometric_mean_deviation,
                None if cell.minutes is None else round(cell.minutes, 3),
                None if cell.images_per_second is None else round(cell.images_per_second, 1),
                ", ".join(cell.schedules) or PUBLISHED,
                ", ".join(cell.changes),
                cell.missing,
            ]
        )
    return file.getvalue()


def _markdown(cells: Sequence[Cell], per_class: dict[str, PerClass]) -> str:
    lines = ["# Results", "", circumstances(cells), "", how_to_read(cells), ""]
    for title, group in by_table(cells).items():
        rows = [row(cell) for cell in group]
        columns = [column for column in headings() if column != SCHEDULE or any(line[column] != NONE for line in rows)]
        table = _table([headings()[name] for name in columns], [[line[name] for name in columns] for line in rows])
        lines += [f"## {title}", "", *table, "", *_difference_lines(group)]
        for name in [cell.name for cell in group if cell.name in per_class]:
            class_headings, *class_rows = _class_rows(per_class[name])
            lines += [f"{name}: {CLASS_SCORES}", "", *_table(class_headings, class_rows), ""]
        lines += [f"- {', '.join(names)}: {note}" for note, names in notes(group).items()]
        lines += [f"- {missing}" for missing in what_is_missing(group)]
        lines += [""]
    return "\n".join(lines)


def _difference_lines(cells: Sequence[Cell]) -> list[str]:
    differences = difference_table(cells)
    if differences is None:
        return []
    table = _table(list(difference_headings().values()), [list(line.values()) for line in differences.rows])
    return [f"### {differences.title}", "", ABOUT_DIFFERENCES, "", *table, ""]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *rows)]


def _class_rows(scores: PerClass) -> list[list[str]]:
    """The headings, then one row per class."""
    headings = ["class", *(f"step {at['step']:,}" for at in scores)]
    num_classes = len(scores[0]["paper"]["recall"])
    return [headings, *([str(i + 1), *(_class_score(at, i) for at in scores)] for i in range(num_classes))]


def _class_score(at: dict[str, Any], i: int) -> str:
    ours, paper = at["ours"], at["paper"]
    known = f"{ours['precision'][i]:.1f} / {ours['recall'][i]:.1f}" if ours else NONE
    return f"{known} ({paper['precision'][i]} / {paper['recall'][i]})"


def _per_class(cell: Cell) -> PerClass | None:
    """Precision and recall in per cent at the steps of the paper's table; our values are of the first seed."""
    if not cell.paper.per_class or not cell.counted:
        return None
    try:
        lines = read_run(cell.folders[cell.counted[0].seed]).lines
    except ValueError:  # the run was damaged after its result was kept
        lines = []
    scores = []
    for step, printed in cell.paper.per_class.items():
        near = [line for line in lines if abs(line["step"] - step) <= NEAR * step]
        nearest = min(near, key=lambda line: abs(line["step"] - step), default=None)
        ours = {name: [100 * value for value in nearest["test"][name]] for name in printed._fields} if nearest else None
        scores.append({"step": step, "ours": ours, "paper": printed._asdict()})
    return scores


def _html(cells: Sequence[Cell], per_class: dict[str, PerClass]) -> str:
    rows = {title: [row(cell) for cell in group] for title, group in by_table(cells).items()}
    tables = [
        {
            "title": title,
            "rows": rows[title],
            "columns": filled_columns(rows[title]),
            "differences": difference_table(group),
            "per_class": {cell.name: _class_rows(per_class[cell.name]) for cell in group if cell.name in per_class},
            "notes": notes(group),
            "missing": what_is_missing(group),
        }
        for title, group in by_table(cells).items()
    ]
    return render(
        "bench.html.j2",
        headings=headings(),
        tables=tables,
        difference_headings=difference_headings(),
        about_differences=ABOUT_DIFFERENCES,
        class_scores=CLASS_SCORES,
        how_to_read=how_to_read(cells),
        circumstances=circumstances(cells),
    )
