"""The names of the files in a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path

CONFIG, SPLIT, ENVIRONMENT = "config.yaml", "split.json", "environment.json"
METRICS, STATE, MODEL, REPORT = "metrics.jsonl", "state.pt", "model.safetensors", "report.html"
SELECTIONS = "selections"  # folder: the samples that joined the labelled set, one file per generation
PRETRAINING = "pretraining"  # folder: the run folder of a stage that trains the encoder first
BASELINE = "supervised"  # folder: the run folder of the labels-only baseline of a run on the user's own data
COLLAPSE = "collapse.json"  # only in runs that did not learn: what was seen, and what was done
PORTFOLIO = "portfolio.yaml"  # the options of a run of the portfolio, which has no CONFIG
CHOICE, MEMBERS = "choice.json", "members"  # further files of a run of the portfolio: its choice, and a folder
CALIBRATION = "calibration.npz"  # predictions for labels that the model was not trained on, and the class shares
TRAINING_REPORT = "training.html"  # own data: curves of the training of a network; REPORT is the page for the user
LOCK = ".lock"


def resume_command(folder: Path) -> str:
    """The command that resumes the run in `folder`."""
    return f"mnar train --resume {shlex.quote(str(folder))}"
