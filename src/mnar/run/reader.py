"""Read finished and unfinished runs back from their folders, for reports, tables and comparisons."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.config import IDLE_GUIDANCES, PUBLISHED, default_guidance_of, guidance_chain, has_option, settings_of
from mnar.run.file_checks import check_complete, check_evaluations
from mnar.run.file_names import CONFIG, METRICS, MODEL, PORTFOLIO, PRETRAINING, REPORT
from mnar.run.folder import Environment, Evaluation, RunFolder, SplitRecord

TASK_SECTIONS = ("dataset", "protocol", "split")

# Options that runs of earlier versions do not have, with the values that these runs used.
ADDED_OPTIONS = {
    "dataset.test_set": "fixed",
    "train.batch_stages": [1.0],
    "train.labeled_view": "auto",
    "learner.weak_gradient": True,
    "learner.targets": "hard",
    "learner.strong_views": 1,
    "learner.labeled_strong": False,
    "learner.count_from": "rectified",
    "guidance.smoothing": 0.0,
    "guidance.pool_shares": "uniform",
}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One run, as far as it has got: its configuration, its split, its environment and all its evaluations."""

    folder: Path
    config: dict[str, Any]
    split: SplitRecord
    environment: Environment
    lines: list[Evaluation]  # in the order of training; never empty
    pretraining: Environment | None = None  # the environment of the stage that trained the encoder

    @property
    def learner(self) -> str:
        """The learner's name; "simmatch without distribution_alignment" if its paper's guidance is missing."""
        name = self.config["learner"]["name"]
        default = default_guidance_of(name)["name"]
        is_missing = default not in ("none", *self._chain)
        return f"{name} without {default}" if is_missing else str(name)

    @property
    def added(self) -> list[str]:
        """The guidances besides the one of the learner's own paper, in the order in which they act."""
        default = default_guidance_of(self.config["learner"]["name"])["name"]
        # The guidance of the learner's own paper counts as added unless it acts first.
        return [name for place, name in enumerate(self._chain) if name != "none" and (place, name) != (0, default)]

    @property
    def label(self) -> str:
        """Learner and added guidances, e.g. "fixmatch + prg_last"."""
        return " + ".join([self.learner, *self.added])

    @property
    def is_plain(self) -> bool:
        """Whether the learner runs without any added guidance that changes pseudo-labels."""
        return set(self.added) <= {*IDLE_GUIDANCES}

    @property
    def method(self) -> dict[str, Any]:
        """All options except the seed, {"guidance.alpha": 3, ...}. Runs with equal methods differ by seed only."""
        settings = {**self._added_options, **settings_of(self.config)}
        return {key: value for key, value in settings.items() if key != "seed" and value is not None}

    @property
    def _added_options(self) -> dict[str, Any]:
        """Those of ADDED_OPTIONS that the parts of this run have."""
        return {name: value for name, value in ADDED_OPTIONS.items() if has_option(self.config, name)}

    @property
    def setting(self) -> dict[str, Any]:
        """The options that define the task: data set, protocol and split. Runs with equal settings can be compared."""
        of_data = {key: value for key, value in self.method.items() if key.split(".")[0] in TASK_SECTIONS}
        return {"dataset": self.split["dataset"], **of_data}  # split.json names a user's own data by its file

    @property
    def schedule(self) -> str:
        """The name of the schedule; runs of earlier versions have the published one."""
        return str(self.config.get("schedule", PUBLISHED))

    @property
    def guidances(self) -> list[dict[str, Any]]:
        """The guidances with their options, in the order in which they act."""
        return guidance_chain(self.config["guidance"])

    @property
    def _chain(self) -> list[str]:
        return [guidance["name"] for guidance in self.guidances]

    @property
    def step(self) -> int:
        """The step of the last evaluation."""
        return int(self.lines[-1]["step"])

    @property
    def is_finished(self) -> bool:
        return _is_last(self.lines[-1], self.config["train"])

    @property
    def knows_the_pool(self) -> bool:
        """Whether the true class of every unlabelled sample is known, as in benchmarks but not in own data."""
        return not self.split.get("unknown")

    @property
    def is_tested_on_training_labels(self) -> bool:
        """Whether the model is scored on its training labels: own data with too few labels to hold some out."""
        return bool(self.split.get("test_is_trained_on"))

    @property
    def num_classes(self) -> int:
        return len(self.split["class_names"])

    @property
    def class_order(self) -> npt.NDArray[np.intp]:
        """The classes from the most labels to the fewest."""
        return np.argsort(-np.asarray(self.split["labeled"]), kind="stable")

    def series(self, section: str, key: str) -> tuple[Floats, Floats]:
        """Steps [n] and values [n, ...] of the evaluations that recorded this value; a null becomes NaN."""
        recorded = [line for line in self.lines if key in line.get(section, {})]
        steps = np.array([line["step"] for line in recorded], dtype=float)
        return steps, np.array([line[section][key] for line in recorded], dtype=float)


class NotEvaluated(ValueError):
    """A run that has started but has no evaluation yet."""


def read_run(folder: Path) -> Run:
    """Read one run folder and check that no evaluation is missing."""
    files = RunFolder(folder)
    _check_exists(files.path)
    # Look for the model before reading the metrics: the model is written after the last evaluation.
    is_finished = files.is_finished
    lines = files.evaluations()
    if not lines and not is_finished:  # a run that has just started may not have the other files yet
        raise NotEvaluated(
            f"{files.path} has no evaluation in {METRICS} yet; train until the first one (train.eval_every)"
        )
    config, split = files.sections(), files.split()
    check_evaluations(files.path / METRICS, lines, len(split["class_names"]))
    # The labels selected between generations are pseudo-labels, so reports draw them in the same way.
    lines = [{"pseudo": line["selection"], **line} if "selection" in line else line for line in lines]
    _check_no_gap(files.path, config["train"], lines, is_finished=is_finished)
    stage = RunFolder(files.path / PRETRAINING)
    pretraining = stage.environment() if stage.has_environment else None
    return Run(files.path, config, split, files.environment(), lines, pretraining)


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Read all runs in and below these folders.

    Runs without an evaluation, damaged runs and copies of other runs are left out with a warning. A damaged run is an
    error if the user named its folder. It is also an error if no run is left.
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
    return _without_copies(runs)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Find run folders at any depth, each once. A run inside a run folder (pretraining, baseline) is not listed.

    A run of the portfolio is not listed either, because it has no training curves; its report is in its own folder.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        _check_exists(folder)
        below = sorted(_outermost(folder), key=_natural_order)
        if not below:
            if portfolios := sorted(path.parent for path in folder.rglob(PORTFOLIO)):
                raise FileNotFoundError(
                    f"{portfolios[0]} is a run of the portfolio, whose report is {portfolios[0] / REPORT}; give "
                    "folders of networks (`mnar train --learner LEARNER`)"
                )
            raise FileNotFoundError(
                f"no run folder in {folder}: no folder there has a {CONFIG}; "
                "give folders that `mnar train --out` or `mnar bench --out` wrote"
            )
        found |= {path.resolve(): path for path in below}
    return list(found.values())


def _without_copies(runs: Iterable[Run]) -> list[Run]:
    """Of runs with equal configuration and seed, keep the one that is furthest: a copy is not another seed."""
    kept: list[Run] = []
    for run in runs:
        twin = next((i for i, other in enumerate(kept) if _is_same(run, other)), None)
        if twin is None:
            kept.append(run)
            continue
        further, other = (run, kept[twin]) if run.step > kept[twin].step else (kept[twin], run)
        kept[twin] = further
        reason = f"{other.folder} is a copy of {further.folder} at step {further.step:,} (same configuration and seed)"
        warnings.warn(f"left out: {reason}", stacklevel=3)
    return kept


def _is_same(run: Run, other: Run) -> bool:
    return run.config["seed"] == other.config["seed"] and run.method == other.method and run.setting == other.setting


def _outermost(folder: Path) -> Iterator[Path]:
    """Folders with a configuration that are not inside another such folder."""
    for path, subfolders, files in os.walk(folder):
        if CONFIG in files:
            subfolders.clear()
            yield Path(path)


def _natural_order(path: Path) -> list[tuple[str, int]]:
    """A sort key that puts seed-2 before seed-10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(path))]


def _check_exists(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}; give the folder that `mnar train --out` wrote")


def _check_no_gap(folder: Path, options: dict[str, Any], lines: Sequence[Evaluation], *, is_finished: bool) -> None:
    if is_finished and not (lines and _is_last(lines[-1], options)):
        last, because = options["iterations"], f"{MODEL} exists"
    else:
        last = lines[-1]["step"]
        because = f"there is one of step {last}"
    every = options["eval_every"]
    # No list of all steps, because a damaged file may have a last step of many billions.
    check_complete(folder, lines, chain(range(every, last + 1, every), [last]), because)


def _is_last(line: Evaluation, options: dict[str, Any]) -> bool:
    stopped_early = bool(line.get("validation", {}).get("is_over", False))
    return stopped_early or line["step"] >= options["iterations"]
