"""The names of the files in a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path

CONFIG, SPLIT, ENVIRONMENT = "config.yaml", "split.json", "environment.json"
METRICS, STATE, MODEL, REPORT = "metrics.jsonl", "state.pt", "model.safetensors", "report.html"
SELECTIONS = "selections"  # folder: the samples that joined the labelled set, one file per generation
PRETRAINING = "pretraining"  # folder: the run folder of a stage that trains the encoder first
LOCK = ".lock"


def resume_command(folder: Path) -> str:
    """The command that resumes the run in `folder`."""
    return f"mnar train --resume {shlex.quote(str(folder))}"
