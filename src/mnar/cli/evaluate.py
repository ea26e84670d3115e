"""`mnar eval`: every metric of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from mnar.cli.options import DataFolder, SetOption
from mnar.terminal.console import console


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    data: DataFolder = None,
    settings: SetOption = None,
) -> None:
    """Score the model of a run on its test set, class by class.

    Example: `mnar eval runs/prg`
    """
    from mnar.run import evaluate_run
    from mnar.training.metrics import overall_metrics, per_class_metrics

    scores = evaluate_run(run, root=data, settings=settings or ())
    table = Table(title=escape(str(run)))
    table.add_column("class")
    columns = per_class_metrics()
    for metric in columns:
        table.add_column(f"{metric.title} %", justify="right")
    for name, *values in zip(scores["class_names"], *(scores[metric.name] for metric in columns), strict=True):
        table.add_row(escape(name), *("–" if value is None else f"{100 * value:.2f}" for value in values))
    console.print(table)
    overall = [f"{metric.title} {scores[metric.name]:.2%}" for metric in overall_metrics()]
    console.print("   ".join(overall), highlight=False, soft_wrap=True)
