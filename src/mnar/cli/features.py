"""`mnar features`: compute features of the user's data with any network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import OWN_DATA_HELP, Device, Id, Ignore, Label, NoLabel, Overwrite, Size, reading_options
from mnar.terminal.console import reading_bar, say


def features(
    source: Annotated[Path, typer.Argument(metavar="DATA", help=OWN_DATA_HELP)],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="The network: a function or class of a Python file or module that is called without arguments, e.g. "
            "my_network.py:make or torchvision.models:resnet18.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("features.npy"),
    weights: Annotated[
        Path | None,
        typer.Option(help="Weights of the network: .safetensors, or a state_dict that torch.save wrote."),
    ] = None,
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    size: Size = None,
    id: Id = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples that the network sees at a time.")] = 64,
    scale: Annotated[
        str,
        typer.Option(
            help="How inputs are scaled. imagenet: pixels in 0..1, then ImageNet's mean and standard deviation. data: "
            "those of the data. none: pixels in 0..1. auto: those of a model file of `mnar train` in --weights, "
            "otherwise imagenet for networks with three channels and data for all others."
        ),
    ] = "auto",
    mean: Annotated[
        str | None, typer.Option(help="The mean to subtract, one number or one per channel, e.g. 0.5,0.5,0.5.")
    ] = None,
    std: Annotated[str | None, typer.Option(help="The standard deviation to divide by. Belongs to --mean.")] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FEATURES",
            help="For new data: an earlier file of features, whose scaling, size of images and encoding of columns are "
            "used again.",
        ),
    ] = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Compute features (embeddings) of your data with any PyTorch network, to train on them.

    Example: `mnar features photos/ --model my_network.py:make --out features.npy`

    Then train with `mnar train photos/ --features features.npy`. The network may come from TorchVision, timm,
    transformers or your own code, with weights that are on this machine: nothing is downloaded. If the network has a
    method `features`, its result is used, and otherwise the network's output. Feature maps and tokens are averaged.
    Give the same options for reading the data to both commands. The data need no labels. For new data of the trained
    model, add `--like features.npy`, and then predict with `mnar predict RUN new/ --features new.npy`. A stopped
    command continues where it stopped if it is repeated.
    """
    from mnar.trained.embed import write_features
    from mnar.trained.embed.embed import module_file
    from mnar.trained.embed.record import record_path
    from mnar.trained.embed.scaling import SCALES
    from mnar.trained.result_file import check_output, part_of

    chosen_scale = next((known for known in SCALES if known == scale), None)
    if chosen_scale is None:
        raise ValueError(f"unknown --scale {scale!r}; choose from {', '.join(SCALES)}")
    moments = {name: _numbers(text, name) for name, text in {"mean": mean, "std": std}.items() if text is not None}
    inputs = [source, weights, module_file(model)]
    inputs += [] if like is None else [like, record_path(like)]
    is_continued = part_of(out).exists()  # a stopped command may have written the record already
    for path, may_exist in ((out, overwrite), (record_path(out), overwrite or is_continued)):
        check_output(path, overwrite=may_exist, inputs=inputs)
    with reading_bar() as on_stage:
        result = write_features(
            source,
            out,
            model=model,
            weights=weights,
            reading=reading_options(label, ignore, unlabeled, size, None, id),
            batch=batch,
            scale=chosen_scale,
            mean=moments.get("mean"),
            std=moments.get("std"),
            like=like,
            device=device,
            overwrite=overwrite,
            on_reading=lambda done, total: on_stage("reading", done, total),
            on_rows=lambda done, total: on_stage("computing", done, total),
        )
    say(f"{result.num_rows:,} samples with {result.num_features:,} features each: {out}")
    say(f"inputs scaled with {result.scaling.in_words}")
    for note in result.notes:
        say(note)


def _numbers(text: str, name: str) -> list[float]:
    """Return the numbers of an option, which are separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--{name} is {text!r}; give numbers separated by commas, e.g. 0.5,0.5,0.5") from error
