"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.OPTION=VALUE", help="Set any option, e.g. guidance.alpha=3. Repeatable."),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="A named training schedule, published or fast (`mnar list schedules`). Default: published.",
    ),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder (or file) that contains the data set.")]
OWN_DATA_HELP = (
    "A folder of images with a CSV, class folders with unlabeled/, a table (.csv, .parquet) or an .npz file."
)
Label = Annotated[str | None, typer.Option(help="Own data: the name of the label column.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Own tables: a column to leave out. Repeatable.")]
NoLabel = Annotated[
    list[str] | None,
    typer.Option("--unlabeled", help="Own data: a further value that means 'no label'. Repeatable."),
]
Size = Annotated[int | None, typer.Option(min=4, help="Own images: resize them to this many pixels per side.")]
Features = Annotated[
    Path | None,
    typer.Option(help="Own data: an .npy file with one row of numbers per sample, used instead of the samples."),
]

Id = Annotated[
    str | None,
    typer.Option("--id", help="Own data: a column that identifies the samples. It names them in predictions.csv only."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Prior = Annotated[
    str | None,
    typer.Option(
        help="The class mix that the predictions are for: uniform, labels, pool, or a CSV file with the columns class "
        "and share. Default: the estimate for the pool, where there is one."
    ),
]
MovedData = Annotated[Path | None, typer.Option("--data", help="The training data of the run, if they have moved.")]
NewId = Annotated[str | None, typer.Option("--id", help="A column that identifies the samples. The output lists it.")]
NewFeatures = Annotated[
    Path | None,
    typer.Option("--features", help="For a run with --features: an .npy file with one row per sample of the new data."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one. For networks only.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


class LocalOrRay(StrEnum):
    local, ray = "local", "ray"


PoolLauncher = Annotated[
    LocalOrRay, typer.Option("--launcher", help="Label the pool on this machine, or on a Ray cluster.")
]
LauncherOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-option",
        metavar="NAME=VALUE",
        help="Option of the launcher, e.g. address=HOST:6379 or num_gpus=0.5. Repeatable.",
    ),
]


def reading_options(
    label: str | None,
    ignore: list[str] | None,
    unlabeled: list[str] | None,
    size: int | None,
    features: Path | None,
    id: str | None = None,
) -> dict[str, Any]:
    """The options for reading own data that the user gave, as `datasets.user_files.read_data` takes them."""
    options = {"label": label, "ignore": tuple(ignore or ()), "unlabeled": tuple(unlabeled or ()), "size": size}
    return {name: value for name, value in {**options, "features": features, "id": id}.items() if value}


def given_options(**options: object) -> list[str]:
    """Names of the options that the user gave."""
    return [f"--{name}" for name, value in options.items() if value is not None]
