"""`mnar relabel`: label the pool, and say which labels can be accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import (
    Device,
    LauncherOptions,
    LocalOrRay,
    MovedData,
    NewFeatures,
    NewId,
    Overwrite,
    PoolLauncher,
    Prior,
    RunArgument,
)
from mnar.terminal.console import console, say
from mnar.terminal.resumable import resumable_bar


def relabel(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("labels.csv"),
    pool: Annotated[
        Path | None,
        typer.Option(help="Another pool to label: data of the same kind as in training. Default: the training pool."),
    ] = None,
    precision: Annotated[
        float, typer.Option(help="The share of right labels that the accepted labels of each class should have.")
    ] = 0.95,
    prior: Prior = None,
    data: MovedData = None,
    id: NewId = None,
    features: NewFeatures = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    launcher: PoolLauncher = LocalOrRay.local,
    launcher_options: LauncherOptions = None,
) -> None:
    """Label the pool of a finished run, and decide for every label: accept, review or reject.

    Example: `mnar relabel runs/survey --out labels.csv --precision 0.95`

    The decisions are calibrated on labels that the model was not trained on, and corrected for the class mix of the
    pool. A stopped command continues where it stopped if it is repeated.

    On a Ray cluster: `mnar relabel RUN --pool /shared/pool --launcher ray --launcher-option address=HOST:6379`
    """
    from mnar.terminal.predictions_table import decisions_table
    from mnar.trained import load
    from mnar.trained.relabel import relabel_file
    from mnar.trained.workers import make_workers

    if pool is not None and data is not None:
        raise ValueError("--data says where the training pool is, but --pool names another one; leave one of them out")
    if pool is None and (id is not None or features is not None):
        raise ValueError("--id and --features say how to read another pool; name it with --pool, or leave them out")
    if pool is None and launcher != LocalOrRay.local:
        raise ValueError(
            f"--launcher {launcher} labels another pool, because the training pool is read on this machine; name the "
            "pool with --pool, or leave out --launcher"
        )
    workers = make_workers(launcher, launcher_options or (), device)
    model = load(run, device=device)
    with resumable_bar("labelling", out) as on_rows:
        result = relabel_file(
            model,
            out,
            source=pool,
            root=data,
            precision=precision,
            prior=prior,
            id=id,
            features=features,
            overwrite=overwrite,
            on_rows=on_rows,
            workers=workers,
        )
    for note in result.notes:
        say(note)
    console.print(decisions_table(result, model.inputs.class_names))
    accepted = result.counts[:, 0]
    if accepted.any():
        expected = result.decisions.expected_overall(accepted)
        say(f"{expected:.1%} of the {accepted.sum():,} accepted labels are expected to be right.")
    for note in result.decisions.notes(model.inputs.class_names):
        say(note)
    say(f"The decisions are for {result.mix.description} (--prior).")
    say(f"{result.num_rows:,} labels: {out}")
