"""`mnar predict`: apply the model of a run to new data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import (
    Device,
    LauncherOptions,
    LocalOrRay,
    NewFeatures,
    NewId,
    Overwrite,
    PoolLauncher,
    Prior,
    RunArgument,
)
from mnar.terminal.console import console, say
from mnar.terminal.resumable import resumable_bar


def predict(
    run: RunArgument,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="New data of the same kind as in training: a table, a folder of images, an image, a CSV file that "
            "lists images, an .npy or .npz file, or a folder of shards (tables or arrays).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv"),
    prior: Prior = None,
    top: Annotated[int, typer.Option(help="Number of classes to list per sample, the most probable first.")] = 1,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probability of every class.")
    ] = False,
    id: NewId = None,
    features: NewFeatures = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    launcher: PoolLauncher = LocalOrRay.local,
    launcher_options: LauncherOptions = None,
) -> None:
    """Predict new data with the model of a finished run, and write the labels with their confidences as a CSV file.

    Example: `mnar predict runs/survey new.csv --out predictions.csv`

    The data need no labels. They go through the preprocessing of the training run. A stopped command continues where
    it stopped if it is repeated.

    On a Ray cluster: `mnar predict RUN /shared/pool --launcher ray --launcher-option address=HOST:6379`
    """
    from mnar.terminal.predictions_table import predictions_table
    from mnar.trained import load
    from mnar.trained.predict import predict_file
    from mnar.trained.workers import make_workers

    workers = make_workers(launcher, launcher_options or (), device)
    model = load(run, device=device)
    with resumable_bar("predicting", out) as on_rows:
        result = predict_file(
            model,
            data,
            out,
            prior=prior,
            top=top,
            probabilities=probabilities,
            id=id,
            features=features,
            overwrite=overwrite,
            on_rows=on_rows,
            workers=workers,
        )
    for note in result.notes:
        say(note)
    console.print(predictions_table(result, model.inputs.class_names))
    say(f"The probabilities are for {result.mix.description} (--prior).")
    say(f"{result.num_rows:,} predictions: {out}")
