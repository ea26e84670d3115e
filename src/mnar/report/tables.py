"""The tables of a report: one row per method, and one row per run."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnar.config import PUBLISHED
from mnar.report.methods import Method, Setting, by_setting, differing_settings, task_name
from mnar.run.folder import Environment
from mnar.run.reader import Run
from mnar.training.headline import Headline, headline, headline_lines

SHORT = 0.25  # if the headline evaluations cover more than this share of a run, they include early learning
ABOUT_SHORT_RUNS = (
    "In short runs these evaluations cover more than a quarter of the training, so read the final accuracy instead."
)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a value over several runs."""

    mean: float
    sd: float | None  # sample standard deviation; None for one run

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = list(values)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    @property
    def percent(self) -> str:
        mean = f"{100 * self.mean:.1f}"
        return mean if self.sd is None else f"{mean} ± {100 * self.sd:.1f}"


@dataclass(frozen=True)
class Row:
    """One method over its seeds."""

    method: str
    num_runs: int
    headline: Headline[Spread]


def row(method: Method) -> Row:
    headlines = [headline(run.lines, run.split["test"]) for run in method.counted]
    return Row(method.name, len(method.counted), over_runs(headlines))


def over_runs(headlines: Sequence[Headline[float]]) -> Headline[Spread]:
    """The figures that all these runs have, each with its spread."""
    names = [name for name in headlines[0] if all(name in figures for figures in headlines)]
    return {name: Spread.of(figures[name] for figures in headlines) for name in names}


def summary(runs: Sequence[Run]) -> list[Row]:
    """One row per method, setting by setting."""
    return [row(method) for setting in by_setting(runs) for method in setting.methods]


def is_short(run: Run) -> bool:
    """Whether the headline evaluations cover a large part of the run."""
    return bool(run.step - headline_lines(run.lines)[0]["step"] > SHORT * run.step)


def about_schedules(runs: Sequence[Run]) -> str:
    """A sentence about the named schedules of the runs; empty if all runs have the published one."""
    names = Counter(run.schedule for run in runs)
    if set(names) == {PUBLISHED}:
        return ""
    used = ", ".join(f"{name} ({num_runs} run{'s' if num_runs > 1 else ''})" for name, num_runs in names.items())
    return f"Training schedules: {used}. Figures of papers belong to their published schedules."


def settings(methods: Sequence[Method]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The options that differ between methods, {option: [one value per method]}, and those that all share."""
    values = [method.run.method for method in methods]
    names = differing_settings(method.run for method in methods)
    different = {name: [of_method.get(name) for of_method in values] for name in names}
    shared = {name: value for name, value in values[0].items() if name not in different}
    return different, shared


@dataclass(frozen=True)
class RunRow:
    """How far one run has got, and how fast it ran."""

    folder: str  # relative to the folder that contains all runs
    setting: str
    method: str
    seed: int
    step: int
    iterations: int
    finished: bool
    minutes: float
    images_per_second: float | None
    split_hash: str


def run_rows(settings: Sequence[Setting]) -> list[RunRow]:
    methods = [(setting, method) for setting in settings for method in setting.methods]
    top = os.path.commonpath([run.folder.resolve().parent for _, method in methods for run in method.runs])
    return [_run_row(run, setting.name, method.name, Path(top)) for setting, method in methods for run in method.runs]


def how_fast(run: Run) -> tuple[float, float | None]:
    """The minutes of all sessions, pretraining included, and the images per second without pretraining."""
    sessions = run.environment["sessions"]
    seconds = sum(session["seconds"] for session in sessions)
    seconds_before = sum(session["seconds"] for session in run.pretraining["sessions"]) if run.pretraining else 0
    images = sum(session["seconds"] * session["images_per_second"] for session in sessions)
    return (seconds_before + seconds) / 60, images / seconds if seconds else None


def _run_row(run: Run, setting: str, method: str, top: Path) -> RunRow:
    minutes, images_per_second = how_fast(run)
    return RunRow(
        folder=str(run.folder.resolve().relative_to(top)),
        setting=setting,
        method=method,
        seed=run.config["seed"],
        step=run.step,
        iterations=run.config["train"]["iterations"],
        finished=run.is_finished,
        minutes=minutes,
        images_per_second=images_per_second,
        split_hash=str(run.split["hash"])[:10],
    )


def task(setting: Setting) -> str:
    """The data set, the protocol and the sample counts, in one line.

    In own data, a sample without a label is counted once: the part of the pool that training also has a label for is
    among the labels.
    """
    split = setting.run.split
    labeled, unlabeled, test = (sum(split[part]) for part in ("labeled", "unlabeled", "test"))
    if setting.run.knows_the_pool:
        sizes = f"{labeled:,} labels, {unlabeled:,} unlabelled and {test:,} test samples"
    elif setting.run.is_tested_on_training_labels:
        sizes = f"{labeled + split['unknown']:,} samples: {labeled:,} labels and {split['unknown']:,} without a label"
    else:
        parts = f"{labeled:,} labels for training, {test:,} held-out labels and {split['unknown']:,} without a label"
        sizes = f"{labeled + test + split['unknown']:,} samples: {parts}"
    return f"{task_name(setting.run)}: {setting.run.num_classes} classes, {sizes}"


def scoring(setting: Setting) -> str:
    """What the scores of own data mean; empty for benchmarks, whose test set is apart."""
    if setting.run.knows_the_pool:
        return ""
    if setting.run.is_tested_on_training_labels:
        return "The scores are too high, because the models are scored on the labels that they were trained on."
    return (
        "The scores are on the held-out labels, whose class distribution is that of the labels and not that of the "
        "samples without a label. Balanced accuracy gives every class the same weight; read it first."
    )


def environments(runs: Sequence[Run]) -> list[str]:
    """The hardware and versions of the runs, each combination once."""
    return list(dict.fromkeys(_environment(run.environment) for run in runs))


def _environment(recorded: Environment) -> str:
    versions = ", ".join(f"{name} {recorded[name]}" for name in ("mnar", "torch", "python"))
    commit = f", commit {str(recorded['commit'])[:10]}" if recorded["commit"] else ""
    return f"{recorded['device']}: {versions}{commit}"
