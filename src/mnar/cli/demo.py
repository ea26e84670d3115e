"""`mnar demo`: four methods on digits, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mnar.terminal.console import bar, console, say


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 4,
    iterations: Annotated[int | None, typer.Option(min=1, help="Training steps per run.")] = None,
) -> None:
    """Show on real digits what happens when labels are missing not at random, and what PRG changes.

    Example: `mnar demo`
    """
    from mnar.bench.demo import demo as run_demo
    from mnar.report import change_headings, changes_in, compared_evaluations, summary
    from mnar.training.headline import BEST, headline_name
    from mnar.training.metrics import headline_metrics

    with bar(f"4 methods × {seeds} seeds") as show:
        runs, reused = run_demo(
            out, seeds=range(1, seeds + 1), iterations=iterations, on_progress=lambda share: show(completed=share)
        )
    if reused:
        say(f"{reused} runs were finished before and are shown again; remove {out} to train them again")
    columns = {headline_name(metric.name): metric.title for metric in headline_metrics()} | {BEST: "best on test"}
    table = Table(title=f"Digits, 72 labels under CADR's protocol (gamma 20): per cent, mean ± sd of {seeds} seeds")
    table.add_column("method", no_wrap=True)
    for title in columns.values():
        table.add_column(title, justify="right")
    for row in summary(runs):
        table.add_row(row.method, *(row.headline[name].percent if name in row.headline else "–" for name in columns))
    console.print(table)
    console.print("Scores are medians of the last 20 evaluations, except best on test.", style="dim")
    changes = changes_in(runs)
    table = Table(*change_headings(), title=f"What PRG changed: {compared_evaluations(changes)}")
    for change in changes:
        table.add_row(*change.cells)
    console.print(table)
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True, markup=False)
