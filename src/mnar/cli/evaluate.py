"""`mnar eval`: every metric of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from mnar.cli.options import Features, Label, NoLabel, reading_options
from mnar.terminal.console import console

OtherData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Benchmarks: the folder of the data set. Own data: another file or folder, of which all labelled samples "
        "are scored.",
    ),
]

EngineSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="engine.OPTION=VALUE", help="An engine option, e.g. engine.device=cpu. Repeatable."),
]


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    data: OtherData = None,
    settings: EngineSettings = None,
    label: Label = None,
    unlabeled: NoLabel = None,
    features: Features = None,
) -> None:
    """Score the model of a run on its test set, class by class.

    Example: `mnar eval runs/prg`

    On other data than the run was trained on: `mnar eval runs/survey --data survey2.csv`
    """
    from mnar.own_data.portfolio_run import evaluate_portfolio_run, is_portfolio_run
    from mnar.run import evaluate_run
    from mnar.training.metrics import overall_metrics, per_class_metrics

    reading = reading_options(label, None, unlabeled, None, features)
    if reading and data is None:
        options = ", ".join(f"--{name}" for name in reading)
        raise ValueError(f"{options} says how to read other data; name these with --data, or leave it out")
    if is_portfolio_run(run):
        if settings:
            raise ValueError(f"{run} is a run of the portfolio, to which --set cannot be applied; leave it out")
        scores = evaluate_portfolio_run(run, root=data, reading=reading)
    else:
        scores = evaluate_run(run, root=data, settings=settings or (), reading=reading)
    for note in scores["notes"]:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
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
