"""What reports rely on in the files of a run folder, so that damage is told at once, by file and entry."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mnar import run_files
from mnar.run_files import resume_command

NUMBER = int | float
PART = {"name": str}
CONFIG = {
    "dataset": PART,
    "protocol": PART,
    "learner": PART,
    "guidance": PART,
    "train": {"iterations": int, "eval_every": int},
    "seed": int,
}
COUNTS = ("labeled", "unlabeled", "test")  # one a class
SPLIT = {"dataset": str, "class_names": [str], **{name: [int] for name in COUNTS}, "hash": str}
ENVIRONMENT = {
    **dict.fromkeys(("mnar", "torch", "python", "device"), str),
    "commit": str | None,
    "sessions": [{"seconds": NUMBER, "images_per_second": NUMBER}],
}
WRITTEN_ANEW = (run_files.ENVIRONMENT, run_files.SPLIT)  # when a run goes on, also one that is done
EVALUATION = {"step": int, "test": {"accuracy": NUMBER, "geometric_mean": NUMBER}}


def damaged(where: str | Path, what: object) -> ValueError:
    return ValueError(f"{where} is damaged: {what}; {remedy(where)}")


def remedy(where: str | Path) -> str:
    if isinstance(where, Path) and where.name in WRITTEN_ANEW:
        return f"put it back, or write it anew: remove what is left of it, then `{resume_command(where.parent)}`"
    return "put it back, or train the run again"


def _check(where: str | Path, value: Any, shape: Any, entry: str = "") -> None:
    """A shape is a type, a list of one shape, or shapes by name, to which there may be further names."""
    kind: Any = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, kind):
        found = "is missing" if value is None else f"is {str(value)[:40]!r}"
        raise damaged(where, f"{entry or 'its content'} {found}")
    if isinstance(shape, dict):
        for name, inner in shape.items():
            _check(where, value.get(name), inner, f"{entry}.{name}" if entry else name)
    elif isinstance(shape, list):
        for item in value:
            _check(where, item, shape[0], f"an item of {entry}")


def check_config(path: Path, config: Any) -> None:
    _check(path, config, CONFIG)
    guidance, entry = config["guidance"], "guidance"
    while guidance := guidance.get("after"):
        entry = f"{entry}.after"
        _check(path, guidance, PART, entry)


def check_split(path: Path, split: Any) -> None:
    _check(path, split, SPLIT)
    for name in COUNTS:
        if len(split[name]) != len(split["class_names"]):
            raise damaged(path, f"{name} has {len(split[name])} counts for {len(split['class_names'])} classes")


def check_environment(path: Path, environment: Any) -> None:
    _check(path, environment, ENVIRONMENT)


def check_evaluations(path: Path, lines: Iterable[Any]) -> None:
    for number, line in enumerate(lines, start=1):
        _check(f"line {number} of {path}", line, EVALUATION)
