"""What a run folder says about a run, read back from its files alone."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from mnar.config import IDLE_GUIDANCES, own_guidance, settings_of
from mnar.report.shapes import check_config, check_environment, check_evaluations, check_split, damaged, remedy
from mnar.run_files import CONFIG, ENVIRONMENT, METRICS, MODEL, PRETRAINING, SPLIT, check_complete, read_metrics

SETTING_SECTIONS = ("dataset", "protocol", "split")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    folder: Path
    config: dict[str, Any]
    split: dict[str, Any]
    environment: dict[str, Any]
    lines: list[dict[str, Any]]  # one an evaluation, in the order of training; never empty
    pretraining: dict[str, Any] | None = None  # the environment of a stage that came first

    @property
    def learner(self) -> str:
        """Its name as its own paper has it, or with what it goes without."""
        name = self.config["learner"]["name"]
        own = own_guidance(name)["name"]
        is_left_out = own not in ("none", *self._chain)
        return f"{name} without {own}" if is_left_out else str(name)

    @property
    def added(self) -> list[str]:
        """The guidances beyond the learner's own, in the order in which they act."""
        own = own_guidance(self.config["learner"]["name"])["name"]
        return [name for place, name in enumerate(self._chain) if name != "none" and (place, name) != (0, own)]

    @property
    def label(self) -> str:
        """Learner and guidance, e.g. "fixmatch + prg_last"; a learner as its own paper has it stands alone."""
        return " + ".join([self.learner, *self.added])

    @property
    def is_plain(self) -> bool:
        """Whether nothing is rectified but by the learner itself."""
        return set(self.added) <= {*IDLE_GUIDANCES}

    @property
    def method(self) -> dict[str, Any]:
        """All settings but the seed, {"guidance.alpha": 3, ...}; equal for runs to average over."""
        settings = settings_of(self.config)
        return {key: value for key, value in settings.items() if key != "seed" and value is not None}

    @property
    def setting(self) -> dict[str, Any]:
        """Of these, what was to be learnt: data and labels. Equal for runs to compare."""
        of_data = {key: value for key, value in self.method.items() if key.split(".")[0] in SETTING_SECTIONS}
        return {"dataset": self.split["dataset"], **of_data}  # people's own are called by their file

    @property
    def guidances(self) -> list[dict[str, Any]]:
        """Each with its own options, in the order in which they act."""
        guidance, chain = self.config["guidance"], list[dict[str, Any]]()
        while guidance:
            chain.insert(0, {name: value for name, value in guidance.items() if name != "after"})
            guidance = guidance.get("after")
        return chain

    @property
    def _chain(self) -> list[str]:
        return [guidance["name"] for guidance in self.guidances]

    @property
    def step(self) -> int:
        """How far it has got: that of its last evaluation."""
        return int(self.lines[-1]["step"])

    @property
    def is_finished(self) -> bool:
        return _is_last(self.lines[-1], self.config["train"])

    @property
    def knows_the_pool(self) -> bool:
        """Whether the true class of every unlabelled sample is known; of people's own data nobody knows it."""
        return not self.split.get("unknown")

    @property
    def num_classes(self) -> int:
        return len(self.split["class_names"])

    @property
    def class_order(self) -> npt.NDArray[np.intp]:
        """Classes from the most labels to the fewest."""
        return np.argsort(-np.asarray(self.split["labeled"]), kind="stable")

    def series(self, section: str, key: str) -> tuple[Floats, Floats]:
        """Steps [n] and values [n, ...] of the evaluations that recorded this value; a null is NaN."""
        recorded = [line for line in self.lines if key in line.get(section, {})]
        steps = np.array([line["step"] for line in recorded], dtype=float)
        return steps, np.array([line[section][key] for line in recorded], dtype=float)


class NotEvaluated(ValueError):
    """A run that has begun, and has nothing to show yet."""


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in and below these folders.

    One not evaluated yet is left out, with a warning, if there are others; so is a damaged one, unless it was named
    itself, and one that is there twice.
    """
    folders = list(map(Path, folders))
    named = {folder.resolve() for folder in folders}
    runs, left_out = list[Run](), list[Exception]()
    for folder in find_runs(folders):
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError) as error:
            if folder.resolve() in named and not isinstance(error, NotEvaluated):
                raise
            left_out.append(error)
    if not runs:
        raise left_out[0]
    for reason in left_out:
        warnings.warn(f"left out: {reason}", stacklevel=2)
    return _each_once(runs)


def _each_once(runs: Iterable[Run]) -> list[Run]:
    """Of runs that are the same but for their folder, the one that got furthest: copies are no further seeds."""
    kept: list[Run] = []
    for run in runs:
        twin = next((i for i, other in enumerate(kept) if _is_same(run, other)), None)
        if twin is None:
            kept.append(run)
            continue
        further, other = (run, kept[twin]) if run.step > kept[twin].step else (kept[twin], run)
        kept[twin] = further
        reason = f"{other.folder} has the configuration and seed of {further.folder}, at step {further.step:,}"
        warnings.warn(f"left out: {reason}", stacklevel=3)
    return kept


def _is_same(run: Run, other: Run) -> bool:
    return run.config["seed"] == other.config["seed"] and run.method == other.method and run.setting == other.setting


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Run folders, at any depth, each once; what is inside one, such as a stage that came first, is part of it."""
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        _check_is_there(folder)
        below = sorted(_outermost(folder), key=_natural)
        if not below:
            raise FileNotFoundError(
                f"no run folder in {folder}: nothing there has a {CONFIG}; "
                "give folders that `mnar train --out` or `mnar bench --out` wrote"
            )
        found |= {path.resolve(): path for path in below}
    return list(found.values())


def _outermost(folder: Path) -> Iterator[Path]:
    """Folders with a configuration that are in no other such."""
    for path, subfolders, files in os.walk(folder):
        if CONFIG in files:
            subfolders.clear()
            yield Path(path)


def _natural(path: Path) -> list[tuple[str, int]]:
    """Sorts seed-2 before seed-10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(path))]


def _check_is_there(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}; give the folder that `mnar train --out` wrote")


def read_run(folder: Path) -> Run:
    folder = Path(folder)
    _check_is_there(folder)
    has_ended = (folder / MODEL).is_file()  # looked for first: it comes after the last evaluation
    lines = read_metrics(folder)
    if not lines and not has_ended:  # said first: a run that has just begun may lack other files, too
        raise NotEvaluated(f"no evaluation in {METRICS} of {folder} yet; train until the first (train.eval_every)")
    check_evaluations(folder / METRICS, lines)
    # Labels selected between generations are pseudo-labels, too, and drawn as such.
    lines = [{"pseudo": line["selection"], **line} if "selection" in line else line for line in lines]
    config, split = _config(folder / CONFIG), _entries(folder / SPLIT)
    check_split(folder / SPLIT, split)
    _check_no_gap(folder, config["train"], lines, has_ended=has_ended)
    stage = folder / PRETRAINING / ENVIRONMENT
    pretraining = _environment(stage) if stage.is_file() else None
    return Run(folder, config, split, _environment(folder / ENVIRONMENT), lines, pretraining)


def _check_no_gap(folder: Path, options: dict[str, Any], lines: Sequence[dict[str, Any]], *, has_ended: bool) -> None:
    if has_ended and not (lines and _is_last(lines[-1], options)):
        last, because = options["iterations"], f"{MODEL} is there"
    else:
        last = lines[-1]["step"]
        because = f"there is one of step {last}"
    every = options["eval_every"]
    check_complete(folder, lines, [*range(every, last + 1, every), last], because)


def _is_last(line: dict[str, Any], options: dict[str, Any]) -> bool:
    stopped_early = bool(line.get("validation", {}).get("is_over", False))
    return stopped_early or line["step"] >= options["iterations"]


def _config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise damaged(path, error) from error
    check_config(path, config)
    return config


def _environment(path: Path) -> dict[str, Any]:
    environment = _entries(path)
    check_environment(path, environment)
    return environment


def _entries(path: Path) -> dict[str, Any]:
    try:
        entries: dict[str, Any] = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise damaged(path, error) from error
    return entries


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if not text.strip():
        state = "is empty" if path.is_file() else "is missing"
        raise ValueError(f"{path.name} {state} in {path.parent}; {remedy(path)}")
    return text
