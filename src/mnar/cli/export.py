"""`mnar export`: write the model of a run in a format that other programs can load."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import Overwrite, Prior, RunArgument
from mnar.terminal.console import say


class Target(StrEnum):
    onnx = "onnx"
    safetensors = "safetensors"
    pt2 = "pt2"


def export(
    run: RunArgument,
    to: Annotated[
        Target,
        typer.Option(
            help="onnx: for ONNX Runtime. pt2: a torch.export program. safetensors: all tensors, and their use as "
            "PyTorch code."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: RUN/export-onnx, or as --to says.")
    ] = None,
    prior: Prior = None,
    overwrite: Overwrite = False,
) -> None:
    """Export the model of a finished run, so that it can be used without mnar.

    Example: `mnar export runs/survey --to onnx`

    The folder contains the model with its preprocessing, a description of its inputs (preprocessing.json), a model card
    (MODEL_CARD.md) and an example that predicts a file (example.py). The exported file is loaded again and compared
    with the model of the run.
    """
    from mnar.trained.export import export_run

    exported = export_run(run, to.value, out, prior=prior, overwrite=overwrite)
    say(f"Exported: {exported.folder}")
    say(f"Files: {', '.join(exported.files)}")
    say(f"The probabilities are for {exported.mix.description} (--prior).")
    say(
        f"Check on {exported.num_checked} made-up samples: the probabilities of the exported file differ from those of "
        f"torch by at most {exported.from_torch:.1e}, and from those of the run by at most {exported.from_run:.1e}."
    )
    for remark in exported.remarks:
        say(remark)
