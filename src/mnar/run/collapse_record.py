"""What the run folder says about a collapse (collapse.json), and the restart with a smaller learning rate.

A restart can be interrupted at any moment. The record is written first, then the files of the first attempt are
removed, and the configuration is replaced last. A record of a restart beside a configuration that still says
`train.collapse: restart` therefore means that the restart is not complete.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from mnar.atomic_write import from_json, write_atomically
from mnar.config import OWN_DATA, RunConfig
from mnar.run.checkpoint import newer, previous
from mnar.run.file_checks import damaged
from mnar.run.file_names import COLLAPSE, METRICS, MODEL, SELECTIONS, STATE
from mnar.run.folder import RunFolder

RATE_OF_RESTART = 0.1  # times the learning rate of the first attempt
FEW_LABELS = 5  # a class with fewer labels may be the reason for a failure
SMALL_SIDE = 32  # pixels; smaller images may lack what distinguishes the classes


class CollapseRecord(TypedDict):
    """One entry of collapse.json: the run was found not to learn."""

    step: int  # the last step of which something is known
    lr: float  # the learning rate of this attempt
    seen: str  # a clause, e.g. "the loss on the labels is 98, where guessing at random would give 2.2"
    action: Literal["warned", "restarted", "failed"]


def read_collapses(folder: Path) -> list[CollapseRecord]:
    """The entries of collapse.json in the order in which they were written; an empty list for a healthy run."""
    path = folder / COLLAPSE
    if not path.exists():
        return []
    try:
        records: list[CollapseRecord] = from_json(path.read_text())
    except ValueError as error:
        raise damaged(path, error) from error
    return records


def record_collapse(folder: Path, record: CollapseRecord) -> None:
    """Add an entry to collapse.json. An entry of the same attempt and step is replaced."""
    kept = [old for old in read_collapses(folder) if (old["lr"], old["step"]) != (record["lr"], record["step"])]
    write_atomically(folder / COLLAPSE, json.dumps([*kept, record], indent=1))


def with_smaller_rate(config: RunConfig) -> RunConfig:
    """The configuration of the second attempt: a tenth of the learning rate, and a second collapse is a failure."""
    smaller = float(f"{config.train.lr * RATE_OF_RESTART:.6g}")  # without the rounding error of the product
    return dataclasses.replace(config, train=dataclasses.replace(config.train, lr=smaller, collapse="fail"))


def is_restart_due(folder: Path) -> bool:
    """Whether a restart was recorded but is not complete."""
    is_recorded = any(record["action"] == "restarted" for record in read_collapses(folder))
    return is_recorded and RunFolder(folder).config().train.collapse == "restart"


def complete_restart(folder: Path) -> None:
    """Remove what the first attempt has written, and store the configuration of the second attempt."""
    state = folder / STATE
    for path in (folder / MODEL, folder / METRICS, state, newer(state), previous(state)):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / SELECTIONS, ignore_errors=True)
    files = RunFolder(folder)
    files.write_config(with_smaller_rate(files.config()))


def remedies(
    config: RunConfig, class_names: Sequence[str], label_counts: Sequence[int], image_side: int | None
) -> list[str]:
    """What a user can try after a run has failed, most promising first. `image_side` is None for tables."""
    advice = [f"a lower learning rate (--set train.lr={config.train.lr * RATE_OF_RESTART:.3g})"]
    rare = [name for name, count in zip(class_names, label_counts, strict=True) if count < FEW_LABELS]
    if rare:
        more = f" and {len(rare) - 5} further classes" if len(rare) > 5 else ""
        advice.append(f"more labels of {', '.join(rare[:5])}{more}")
    is_own_data = config.dataset.name == OWN_DATA
    if image_side is not None and image_side < SMALL_SIDE and is_own_data:
        advice.append("larger images (--size 64)")
    if config.learner.name != "supervised":
        advice.append("the labels alone (--learner supervised)")
    if is_own_data:
        advice.append("`mnar inspect`, which points out unusual columns and labels")
    return advice
