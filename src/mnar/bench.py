"""Cells of the paper's tables, trained with several seeds, to be shown beside what the paper printed.

OUT/runs/RECIPE/seed-N          a run folder; recipes with equal configurations share one
OUT/runs/RECIPE/seed-N.json     what a run that is done came to, so that it is read only once
OUT/runs/RECIPE/seed-N.failed   why the last attempt failed
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from traceback import format_exception
from typing import Any

import torch

from mnar.checkpoint import write_atomically
from mnar.config import RunConfig, settings_of
from mnar.evaluate import headline
from mnar.folder import CONFIG, MODEL, locked
from mnar.recipe import Recipe
from mnar.recipes import RECIPES, configure
from mnar.report import Spread, how_fast, read_metrics, read_run
from mnar.side_by_side import check_reusable, num_cores, run_all

RUNS, RESULT, FAILED = "runs", ".json", ".failed"
FIGURES = ("accuracy_median_last_20", "accuracy_final", "accuracy_best_on_test", "geometric_mean")


@dataclass(frozen=True)
class RunResult:
    """What one run came to, so far."""

    seed: int
    step: int
    iterations: int
    is_done: bool
    accuracy_median_last_20: float
    accuracy_final: float
    accuracy_best_on_test: float
    geometric_mean: float
    minutes: float
    images_per_second: float | None
    device: str
    commit: str | None


@dataclass(frozen=True)
class Cell:
    """A recipe with its runs, and why some of them are missing."""

    name: str
    recipe: Recipe
    folders: dict[int, Path]  # by seed
    results: tuple[RunResult, ...]  # of the runs that have been evaluated
    failures: dict[int, str]  # by seed

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]

    @property
    def counted(self) -> tuple[RunResult, ...]:
        """The runs that are done; as long as there is none, all."""
        return tuple(result for result in self.results if result.is_done) or self.results

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Of those counted, by figure; empty if there is none."""
        if not self.counted:
            return {}
        return {figure: Spread.of(getattr(result, figure) for result in self.counted) for figure in FIGURES}

    @property
    def is_shortened(self) -> bool:
        """Whether its runs have fewer steps than the recipe asks for."""
        return any(result.iterations < _as_it_is(self.name).train.iterations for result in self.results)

    @property
    def num_done(self) -> int:
        return sum(result.is_done for result in self.results)

    @property
    def missing(self) -> str:
        """What is not done yet, in words; empty if nothing."""
        reached = {result.seed: f"seed {result.seed} at step {result.step:,}" for result in self.results}
        done = {result.seed for result in self.results if result.is_done}
        waiting = {
            seed: f"seed {seed} {'before its first evaluation' if (path / CONFIG).exists() else 'not begun'}"
            for seed, path in self.folders.items()
        }
        failed = {seed: f"seed {seed} failed" for seed in self.failures}
        states = {**waiting, **reached, **failed}
        return ", ".join(state for seed, state in states.items() if seed not in done)


def choose(patterns: Iterable[str]) -> list[str]:
    """Recipes by name, by pattern ("table1/cifar10-*"), or all below a name ("table1"), in the order of the list."""
    chosen: set[str] = set()
    for pattern in patterns:
        below = f"{pattern.rstrip('/')}/"
        found = [name for name in RECIPES if fnmatchcase(name, pattern) or name.startswith(below)]
        if not found:
            tables = list(dict.fromkeys(name.partition("/")[0] for name in RECIPES))
            near = difflib.get_close_matches(pattern, [*tables, *RECIPES], n=3, cutoff=0.3) or tables
            raise ValueError(f"no recipe is called {pattern!r}; nearest: {near} (`mnar list recipes` has all)")
        chosen.update(found)
    if not chosen:
        raise ValueError('no recipe was named; `mnar list recipes` has all, and "table1" means a whole table')
    return [name for name in RECIPES if name in chosen]


class Bench:
    """Some recipes with some seeds in one folder. All of them have the same `iterations`, `data` and `settings`."""

    def __init__(
        self,
        folder: Path,
        patterns: Iterable[str],
        *,
        seeds: Sequence[int],
        iterations: int | None = None,
        data: str | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        if not seeds:
            raise ValueError("there is nothing to train without a seed; choose at least one")
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations is {iterations}; a run has at least one step")
        self.folder, self.names = folder, choose(patterns)
        # Many recipes are the same run, such as a cell that one table scores by accuracy and another by GM.
        self.folders = {name: {seed: self._folder(name, seed) for seed in seeds} for name in self.names}
        self.configs: dict[Path, RunConfig] = {}
        self.refused: dict[Path, str] = {}  # the settings do not fit these
        for name in dict.fromkeys(map(first_like, self.names)):
            paths = {self._folder(name, seed): seed for seed in seeds}
            try:
                config = configure(recipe=name, iterations=iterations, data=data, settings=settings)
                self.configs |= {path: replace(config, seed=seed) for path, seed in paths.items()}
            except ValueError as error:
                self.refused |= dict.fromkeys(paths, str(error))
        if not self.configs:
            raise ValueError(next(iter(self.refused.values())))

    def run(
        self,
        on_progress: Callable[[float], None],
        *,
        minutes: float | None = None,
        num_processes: int | None = None,
        on_change: Callable[[list[Cell]], None] = lambda cells: None,
    ) -> list[Cell]:
        """Train what is missing, to the end or for so many minutes; returns all cells as they stand then.

        `on_change` gets them whenever a run is done, and in the end, also when training is interrupted; no other bench
        of this folder comes between.
        """
        if minutes is not None and not minutes > 0:
            raise ValueError(f"minutes is {minutes}; give the runs some time, or leave it out to train to the end")
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            missing = {path: config for path, config in self.configs.items() if _kept(path, config) is None}
            for path, config in missing.items():
                with suppress(ValueError):  # damaged; that is a failure of its own
                    check_reusable(path, config)
            for path in self.configs:
                path.with_suffix(FAILED).unlink(missing_ok=True)  # it is tried again
            num_kept, num_all = len(self.configs) - len(missing), len(self.configs)
            new = dict(missing)  # of these nothing is kept yet

            def follow(share: float) -> None:
                done = [path for path in new if (path / MODEL).exists()]
                for path in done:
                    _keep(path, new.pop(path))
                if done:
                    on_change(self.cells())
                on_progress((num_kept + share * len(missing)) / num_all)

            try:
                follow(0.0)
                run_all(
                    missing,
                    follow,
                    num_processes=num_processes or _num_processes(missing.values()),
                    seconds=None if minutes is None else 60 * minutes,
                    on_failure=_note_failure,
                )
            finally:
                for path, config in new.items():
                    _keep(path, config)
                cells = self.cells()
                on_change(cells)
        return cells

    def cells(self) -> list[Cell]:
        """All recipes as they stand, whoever is training them now."""
        results: dict[Path, RunResult | None] = dict.fromkeys(self.refused)
        failures = dict(self.refused)
        for path, config in self.configs.items():
            try:
                result = results[path] = _result(path, config)
            except ValueError as error:  # one damaged folder does not hide the others
                result, results[path], failures[path] = None, None, _in_a_line(error)
            if (reason := path.with_suffix(FAILED)).exists() and not (result and result.is_done):
                failures.setdefault(path, reason.read_text().partition("\n")[0])
        return [
            Cell(
                name,
                RECIPES[name],
                folders,
                tuple(result for path in folders.values() if (result := results[path]) is not None),
                {seed: failures[path] for seed, path in folders.items() if path in failures},
            )
            for name, folders in self.folders.items()
        ]

    def _folder(self, name: str, seed: int) -> Path:
        return self.folder / RUNS / first_like(name) / f"seed-{seed}"


@cache
def first_like(name: str) -> str:
    """The first recipe with the same configuration as this one."""
    parts = _parts(name)
    namesakes = [other for other in RECIPES if _parts(other) == parts]
    return next(other for other in namesakes if other == name or _as_it_is(other) == _as_it_is(name))


@cache
def _as_it_is(name: str) -> RunConfig:
    return configure(recipe=name)


@cache
def _parts(name: str) -> tuple[Any, ...]:
    """What two recipes share if they are the same run; cheaper to compare than configurations."""
    sections = RECIPES[name].sections
    return tuple(sections.get(section, {}).get("name") for section in ("dataset", "protocol", "learner", "guidance"))


def _result(path: Path, config: RunConfig) -> RunResult | None:
    """What a run has come to; None before its first evaluation."""
    kept = _kept(path, config)
    if kept is not None or not (path / CONFIG).exists():
        return kept
    check_reusable(path, config)
    return _read_result(path) if read_metrics(path) else None


def _keep(path: Path, config: RunConfig) -> None:
    """Write down what a run came to if it is done, so that nobody need read all of it again."""
    if (path / MODEL).exists():
        with suppress(ValueError):  # damaged: whoever asks for the result is told
            check_reusable(path, config)
            result = {"settings": _settings(config), "result": asdict(_read_result(path))}
            write_atomically(path.with_suffix(RESULT), json.dumps(result, indent=1))


def _kept(path: Path, config: RunConfig) -> RunResult | None:
    """What a run that is done came to, if that was read before."""
    kept = path.with_suffix(RESULT)
    if not (kept.exists() and (path / MODEL).exists()):
        return None
    try:
        entries = json.loads(kept.read_text())
        return RunResult(**entries["result"]) if entries["settings"] == _settings(config) else None
    except (ValueError, KeyError, TypeError):  # damaged, or of another version: it is made again
        return None


def _settings(config: RunConfig) -> dict[str, Any]:
    """As JSON gives it back."""
    settings: dict[str, Any] = json.loads(json.dumps(settings_of(config.to_dict()), default=str))
    return settings


def _read_result(path: Path) -> RunResult:
    run = read_run(path)
    scores, (minutes, images_per_second) = headline(run.lines), how_fast(run)
    return RunResult(
        seed=run.config["seed"],
        step=run.lines[-1]["step"],
        iterations=run.config["train"]["iterations"],
        is_done=(path / MODEL).exists(),
        accuracy_median_last_20=scores["accuracy_median_last_20"],
        accuracy_final=scores["accuracy_final"],
        accuracy_best_on_test=scores["accuracy_best_on_test"],
        geometric_mean=scores["geometric_mean"],
        minutes=minutes,
        images_per_second=images_per_second,
        device=run.environment["device"],
        commit=run.environment["commit"],
    )


def _note_failure(path: Path, error: Exception) -> None:
    """In a line for the tables, and where it happened for whoever looks for the cause."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_suffix(FAILED), f"{_in_a_line(error)}\n{''.join(format_exception(error))}")


def _in_a_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    says_enough = isinstance(error, ValueError | OSError) and text
    return text if says_enough else f"{type(error).__name__}: {text}".removesuffix(": ")


def _num_processes(configs: Iterable[RunConfig]) -> int:
    uses_gpu = torch.cuda.is_available() and any(config.engine.device != "cpu" for config in configs)
    return 1 if uses_gpu else num_cores()  # one run fills a GPU
