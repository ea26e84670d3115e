"""`mnar inspect`: which classes the labels of the user's own data under-represent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.atomic_write import check_writable
from mnar.cli.options import OWN_DATA_HELP, Features, Id, Ignore, Label, NoLabel, Size, reading_options
from mnar.terminal.console import console, reading_bar

RESULTS = "inspect.json"


def inspect(
    source: Annotated[Path, typer.Argument(metavar="DATA", help=OWN_DATA_HELP)],
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    size: Size = None,
    features: Features = None,
    id: Id = None,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path(RESULTS),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the cross-validation folds and the bootstrap.")] = 0,
) -> None:
    """Estimate which classes your labels under-represent, with confidence intervals, and recommend a method.

    Example: `mnar inspect survey.csv --label vote`
    """
    from mnar.own_data.train import check_replaces_findings, inspect_files
    from mnar.terminal.inspection_table import inspection_table

    check_writable(out, example=RESULTS)  # before the data are read, which may take minutes
    check_replaces_findings(out)
    reading = reading_options(label, ignore, unlabeled, size, features, id)
    with reading_bar() as on_stage:
        inspection = inspect_files(source, out, reading=reading, seed=seed, on_stage=on_stage)
    console.print(inspection_table(inspection))
    console.print(f"Full results: {out}", soft_wrap=True, markup=False)
