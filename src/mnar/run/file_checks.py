"""Checks of the files in a run folder, so that an error names the damaged file and the damaged entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from mnar.option_values import shown
from mnar.run.file_names import ENVIRONMENT, METRICS, SPLIT, resume_command

# A shape is a type, a list with the shape of its items, or a dict of shapes by name (further names are allowed).
NUMBER = int | float
LARGEST_NUMBER = 2**63 - 1  # numpy and matplotlib take no larger whole numbers
PART = {"name": str}
CONFIG_SHAPE = {
    "dataset": PART,
    "protocol": PART,
    "learner": PART,
    "guidance": PART,
    "train": {"iterations": int, "eval_every": int},
    "seed": int,
}
COUNTS = ("labeled", "unlabeled", "test")  # one number per class
SPLIT_SHAPE = {"dataset": str, "class_names": [str], **{name: [int] for name in COUNTS}, "hash": str}
ENVIRONMENT_SHAPE = {
    **dict.fromkeys(("mnar", "torch", "python", "device"), str),
    "commit": str | None,
    "sessions": [{"seconds": NUMBER, "images_per_second": NUMBER}],
}
# Only the metrics that every version has recorded: a run stays readable after a metric is added.
EVALUATION_SHAPE = {"step": int, "test": {"accuracy": NUMBER, "geometric_mean": NUMBER}}
VALIDATION_SHAPE = {"loss": NUMBER, "steps_since": int, "is_over": bool}
OF_PSEUDO_LABELS = {"share": list, "error": list, "precision": list}
SECTION_SHAPES = {"validation": VALIDATION_SHAPE, "pseudo": OF_PSEUDO_LABELS, "selection": OF_PSEUDO_LABELS}
NUMBERS = ("test", "train", "pseudo", "selection", "guidance", "matrices")  # sections that hold numbers only
PER_CLASS = {"guidance": 1, "matrices": 2}  # lists with a number per class, and tables with a row per class
SCORES_PER_CLASS = ("precision", "recall", "predicted_share")
WRITTEN_ON_RESUME = (ENVIRONMENT, SPLIT)  # `mnar train --resume` writes these files again, also for a finished run


def damaged(where: str | Path, what: object) -> ValueError:
    return ValueError(f"{where} is damaged: {what}; {remedy(where)}")


def remedy(where: str | Path) -> str:
    if isinstance(where, Path) and where.name in WRITTEN_ON_RESUME:
        return f"restore it, or remove it and run `{resume_command(where.parent)}`, which writes it again"
    return "restore it, or train the run again"


def check_config(path: Path, config: Any) -> None:
    _check(path, config, CONFIG_SHAPE)
    for name in ("iterations", "eval_every"):
        if config["train"][name] < 1:
            raise damaged(path, f"train.{name} is {config['train'][name]}")
    guidance, entry = config["guidance"], "guidance"
    while guidance := guidance.get("preceded_by"):  # the guidances that act before, one inside the other
        entry = f"{entry}.preceded_by"
        _check(path, guidance, PART, entry)


def check_split(path: Path, split: Any) -> None:
    _check(path, split, SPLIT_SHAPE)
    for name in COUNTS:
        if len(split[name]) != len(split["class_names"]):
            raise damaged(path, f"{name} has {len(split[name])} counts for {len(split['class_names'])} classes")
        if min(split[name], default=0) < 0:
            raise damaged(path, f"{name} has a count of {min(split[name])}")


def check_environment(path: Path, environment: Any) -> None:
    _check(path, environment, ENVIRONMENT_SHAPE)


def check_evaluations(path: Path, lines: Iterable[Any], num_classes: int) -> None:
    for number, line in enumerate(lines, start=1):
        where = f"line {number} of {path}"
        _check(where, line, EVALUATION_SHAPE)
        for section, shape in SECTION_SHAPES.items():
            if section in line:
                _check(where, line[section], shape, section)
        for section in NUMBERS:
            values = line.get(section, {})
            _check(where, values, dict, section)
            for name, value in values.items():
                if problem := _problem_with_numbers(value, _dimensions(section, name), num_classes):
                    raise damaged(where, f"{section}.{name} {problem}")
        written = [name for name in SCORES_PER_CLASS if name in line["test"]]
        for name in SCORES_PER_CLASS if written else ():  # every version writes all of them, with a number per class
            if name not in written:
                raise damaged(where, f"test.{name} is missing")
            if np.isnan(np.array(line["test"][name], dtype=np.float64)).any():
                raise damaged(where, f"test.{name} has an entry without a number")


def _dimensions(section: str, name: str) -> tuple[int, ...]:
    """The dimensions that a value can have: 0 for a number, 1 for a number per class, 2 for a row per class."""
    if section in PER_CLASS:
        return (PER_CLASS[section],)
    if name in SCORES_PER_CLASS or (section in SECTION_SHAPES and name in OF_PSEUDO_LABELS):
        return (1,)
    return (0, 1) if section == "test" else (0,)  # a metric is one share, or one share per class


def _problem_with_numbers(value: object, dimensions: tuple[int, ...], num_classes: int) -> str | None:
    """Say what is wrong with a number or a table of numbers, where null is an unknown number."""
    kinds = set(map(type, np.array(value, dtype=object).flat))
    if list in kinds:
        return "has rows of different lengths"
    try:
        numbers = np.array(value, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        numbers = np.array(np.inf)
    if not kinds <= {int, float, NoneType} or np.isinf(numbers).any():
        return "has entries that are not finite numbers"
    if numbers.ndim not in dimensions:
        return f"is not a {('number', 'list', 'table')[dimensions[-1]]}"
    if numbers.ndim and (np.abs(numbers) > LARGEST_NUMBER).any():  # a comparison with NaN is false
        return "has entries that are too large"
    if numbers.ndim and len(numbers) != num_classes:
        return f"has {len(numbers)} entries for {num_classes} classes"
    return None


def check_complete(folder: Path, lines: Sequence[dict[str, Any]], due: Iterable[int], because: str) -> None:
    """Refuse metrics without an evaluation that was due: no crash loses one, and the rest would give another result."""
    steps = {line["step"] for line in lines}
    for step in due:
        if step not in steps:
            raise ValueError(
                f"{folder / METRICS} has no evaluation of step {step}, although {because}; "
                f"restore the file, or remove {folder} and train the run again"
            )


def problem_with(value: Any, shape: Any, entry: str = "") -> str | None:
    """Say which entry of a value is missing or has another type than its shape; None if all entries are right."""
    kind: Any = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, kind):
        return f"{entry or 'its content'} {'is missing' if value is None else f'is {str(value)[:40]!r}'}"
    if isinstance(value, int | float) and not abs(value) <= LARGEST_NUMBER:  # also NaN
        return f"{entry} is {shown(value)}"
    inner = list[tuple[Any, Any, str]]()
    if isinstance(shape, dict):
        inner = [(value.get(name), of, f"{entry}.{name}" if entry else name) for name, of in shape.items()]
    elif isinstance(shape, list):
        inner = [(item, shape[0], f"an item of {entry}") for item in value]
    return next((problem for part in inner if (problem := problem_with(*part))), None)


def _check(where: str | Path, value: Any, shape: Any, entry: str = "") -> None:
    if problem := problem_with(value, shape, entry):
        raise damaged(where, problem)
