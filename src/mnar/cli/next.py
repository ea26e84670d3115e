"""`mnar next`: which samples to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import Device, MovedData, Overwrite, RunArgument
from mnar.terminal.console import bar, console, say


def next_samples(
    run: RunArgument,
    budget: Annotated[
        int | None, typer.Option(help="Number of samples to label. Default: 100, or all samples of a smaller pool.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("to_label.csv"),
    format: Annotated[
        str,
        typer.Option(
            help="csv: a table with an empty column `label`. label-studio: import tasks with pre-annotations as JSON, "
            "and the labelling configuration beside it."
        ),
    ] = "csv",
    image_prefix: Annotated[
        str,
        typer.Option(help="Label Studio: what comes before the path of each image, e.g. /data/local-files/?d=photos/"),
    ] = "",
    data: MovedData = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random draws.")] = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Choose the samples of the pool whose labels would help most, and write them for annotators.

    Example: `mnar next runs/survey --budget 500 --out to_label.csv`

    Classes with few labels and contested classes come first, and similar samples are not chosen together. Give the
    file to annotators, then read their labels with `mnar merge`.
    """
    from mnar.terminal.predictions_table import chosen_table
    from mnar.trained import load
    from mnar.trained.next_labels import FORMATS, next_file

    chosen_format = next((known for known in FORMATS if known == format), None)
    if chosen_format is None:
        raise ValueError(f"unknown --format {format!r}; choose from {', '.join(FORMATS)}")
    model = load(run, device=device)
    with bar("predicting", total=None) as update:
        result = next_file(
            model,
            out,
            budget=budget,
            format=chosen_format,
            image_prefix=image_prefix,
            root=data,
            seed=seed,
            overwrite=overwrite,
            on_rows=lambda done, total: update(completed=done, total=total),
        )
    for note in result.notes:
        say(note)
    console.print(chosen_table(result, model.inputs.class_names))
    files = ", ".join(map(str, result.files))
    say(f"{result.num_rows:,} samples to label, of {result.num_pool:,} without a label: {files}")
    say("When they are labelled, read the labels with `mnar merge DATA FILE`, and train again.")
