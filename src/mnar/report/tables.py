"""The numbers of a report as rows, for the page and for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mnar.evaluate import headline
from mnar.report.record import Run, by_method, differing_settings


@dataclass(frozen=True)
class Spread:
    """A value over several runs."""

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
    accuracy_median_last_20: Spread
    accuracy_final: Spread
    accuracy_best_on_test: Spread
    geometric_mean: Spread


def summary(runs: Sequence[Run]) -> list[Row]:
    rows = []
    for method, group in by_method(runs).items():
        headlines = [headline(run.lines) for run in group]
        spreads = {
            key: Spread.of(each[key] for each in headlines)
            for key in (
                "accuracy_median_last_20",
                "accuracy_final",
                "accuracy_best_on_test",
                "geometric_mean",
            )
        }
        rows.append(Row(method, len(group), **spreads))
    return rows


def settings(runs: Sequence[Run]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Settings that differ between methods, {setting: [one value a method]}, and those that all share."""
    methods = [group[0].method for group in by_method(runs).values()]
    different = {name: [method.get(name) for method in methods] for name in differing_settings(runs)}
    shared = {name: value for name, value in methods[0].items() if name not in different}
    return different, shared


@dataclass(frozen=True)
class RunRow:
    """How far and how fast one run ran."""

    folder: str
    method: str
    seed: int
    step: int
    iterations: int
    stopped_early: bool
    minutes: float
    images_per_second: float | None
    split_hash: str

    @property
    def finished(self) -> bool:
        return self.stopped_early or self.step >= self.iterations


def run_rows(runs: Sequence[Run]) -> list[RunRow]:
    return [_run_row(run, method) for method, group in by_method(runs).items() for run in group]


def _run_row(run: Run, method: str) -> RunRow:
    sessions = [session for session in run.environment["sessions"] if session.get("seconds")]
    seconds = sum(session["seconds"] for session in sessions)
    images = sum(session["seconds"] * session["images_per_second"] for session in sessions)
    return RunRow(
        folder=run.folder.name,
        method=method,
        seed=run.config["seed"],
        step=run.lines[-1]["step"],
        iterations=run.config["train"]["iterations"],
        stopped_early=run.lines[-1].get("validation", {}).get("is_over", False),
        minutes=seconds / 60,
        images_per_second=images / seconds if seconds else None,
        split_hash=str(run.split["hash"])[:10],
    )


def tasks(runs: Sequence[Run]) -> list[str]:
    """What was learnt, once for each data set and split size."""
    return list(dict.fromkeys(_task(run) for run in runs))


def _task(run: Run) -> str:
    split, protocol = run.split, run.config["protocol"]
    gamma = f", γ = {protocol['gamma']:g}" if protocol.get("gamma") is not None else ""
    labeled, unlabeled, test = (sum(split[part]) for part in ("labeled", "unlabeled", "test"))
    unlabeled += split.get("unknown", 0)
    sizes = f"{labeled:,} labels, {unlabeled:,} unlabelled and {test:,} test samples"
    drawn = "" if protocol["name"] == "found" else f", {protocol['name']} protocol{gamma}"
    return f"{split['dataset']}{drawn}: {run.num_classes} classes, {sizes}"


def environments(runs: Sequence[Run]) -> list[str]:
    """What the runs ran on, once for each machine and version."""
    return list(dict.fromkeys(_environment(run.environment) for run in runs))


def _environment(recorded: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {recorded[name]}" for name in ("mnar", "torch", "python"))
    commit = f", commit {str(recorded['commit'])[:10]}" if recorded["commit"] else ""
    return f"{recorded['device']}: {versions}{commit}"
