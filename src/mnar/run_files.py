"""The files of a run folder by name, and what those who write it and those who read it have in common."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CONFIG, SPLIT, ENVIRONMENT = "config.yaml", "split.json", "environment.json"
METRICS, STATE, MODEL, REPORT = "metrics.jsonl", "state.pt", "model.safetensors", "report.html"
SELECTIONS = "selections"  # who joined the labelled set, by generation
PRETRAINING = "pretraining"  # the run folder of a stage that comes first
LOCK = ".lock"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """One dict an evaluation. A last line that a crash cut off is left out; any other damage is an error."""
    path = folder / METRICS
    written = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    lines = []
    for number, text in enumerate(written, start=1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError as error:
            if number < len(written):
                raise ValueError(f"line {number} of {path} is not JSON: {error}") from error
    return lines


def check_complete(folder: Path, lines: Sequence[dict[str, Any]], due: Iterable[int], because: str) -> None:
    """Refuse metrics that lack an evaluation that was due: no crash loses one, and what is left is another result."""
    steps = {line["step"] for line in lines}
    for step in due:
        if step not in steps:
            raise ValueError(
                f"{folder / METRICS} has no evaluation of step {step}, though {because}; "
                f"put the file back, or remove {folder} and train the run again"
            )


def resume_command(folder: Path) -> str:
    return f"mnar train --resume {shlex.quote(str(folder))}"
