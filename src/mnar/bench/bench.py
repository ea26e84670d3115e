"""Train cells of the paper's tables with several seeds, to compare the results with the paper's numbers.

OUT/runs/RECIPE/seed-N          a run folder; recipes with equal configurations share one folder
OUT/runs/RECIPE/seed-N.json     the result of a finished run (mnar.bench.run_result)
OUT/runs/RECIPE/seed-N.failed   the reason why the last attempt failed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnar.bench.cell import Cell, choose, first_like
from mnar.bench.changed_settings import changed_settings, named_settings, over_seeds
from mnar.bench.check import refused_runs
from mnar.bench.launchers.launcher import Launcher
from mnar.bench.parallel import LocalProcesses, check_reusable, run_all
from mnar.bench.run_result import (
    FAILED,
    RunResult,
    forget_failure,
    in_one_line,
    keep_result,
    kept_result,
    note_failure,
    result_of,
)
from mnar.config import RunConfig
from mnar.recipes import RECIPES, configure, with_given_options
from mnar.run import RunFolder
from mnar.run.file_names import CONFIG, MODEL
from mnar.run.lock import locked

RUNS, SEED = "runs", "seed-"


class Bench:
    """Recipes, each with several seeds, in one folder. All runs have the same `schedule`, `data` and `settings`."""

    def __init__(
        self,
        folder: Path,
        patterns: Iterable[str],
        *,
        seeds: Sequence[int],
        schedule: str | None = None,
        iterations: int | None = None,
        data: str | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        if not seeds:
            raise ValueError("no seed was given; choose at least one seed")
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations is {iterations}; a run has at least one step. Choose e.g. --iterations 1000")
        self.folder, self.names = folder, choose(patterns)
        # Many recipes are the same run, e.g. a cell that one table scores by accuracy and another table by GM.
        self.folders = {name: {seed: self._folder(name, seed) for seed in seeds} for name in self.names}
        self.configs: dict[Path, RunConfig] = {}
        self.refused: dict[Path, str] = {}  # runs that cannot have these settings, with the reason
        self.changes: dict[Path, tuple[str, ...]] = {}  # settings in which runs differ from their recipe
        for name in dict.fromkeys(map(first_like, self.names)):
            paths = {self._folder(name, seed): seed for seed in seeds}
            try:
                config = configure(recipe=name, schedule=schedule, iterations=iterations, data=data, settings=settings)
                self.configs |= {path: replace(config, seed=seed) for path, seed in paths.items()}
                self.changes |= dict.fromkeys(paths, changed_settings(name, config))
            except ValueError as error:
                self.refused |= dict.fromkeys(paths, str(error))
                self.changes |= dict.fromkeys(paths, named_settings(settings))
        if not self.configs:
            raise ValueError(next(iter(self.refused.values())))

    @classmethod
    def existing(
        cls,
        folder: Path,
        patterns: Iterable[str] = (),
        *,
        seeds: Sequence[int] = (),
        schedule: str | None = None,
        iterations: int | None = None,
        data: str | None = None,
        settings: Sequence[str] = (),
    ) -> Bench:
        """The bench that is already in a folder, or only the recipes that `patterns` name.

        Each run keeps the configuration in its folder. A run that differs from `schedule`, `iterations` or `settings`
        is a failure, because the user has asked for another run.
        """
        trained = {name: found for name in RECIPES if (found := _seeds_in(folder / RUNS / name))}
        if not trained:
            raise FileNotFoundError(f"there is no bench in {folder}; name the folder given to `mnar bench` as --out")
        seeds = seeds or sorted(set().union(*trained.values()))
        chosen: dict[str, Any] = {"schedule": schedule, "iterations": iterations, "settings": settings}
        bench = cls(folder, patterns or trained, seeds=seeds, data=data, **chosen)
        for path in bench.configs:
            # A run that is damaged, that has other parts or that has not started is compared with the recipe.
            with suppress(ValueError, FileNotFoundError):
                config = bench.configs[path] = with_given_options(RunFolder(path).config(), **chosen)
                recipe = path.parent.relative_to(folder / RUNS).as_posix()
                bench.changes[path] = changed_settings(recipe, config)
        return bench

    def run(
        self,
        on_progress: Callable[[float], None],
        *,
        minutes: float | None = None,
        num_processes: int | None = None,
        on_change: Callable[[list[Cell]], None] = lambda cells: None,
        launcher: Launcher | None = None,
    ) -> list[Cell]:
        """Train the runs that are not finished, to their end or for a number of minutes. Return all cells.

        The bench calls `on_change` with all cells whenever a run is finished and once at the end, also after an
        interruption. During the call, the bench holds the lock of the folder, so that no other bench changes the files.
        The runs are trained in processes of this machine, or by `launcher` (`mnar.bench.launchers.make_launcher`).
        """
        if minutes is not None and not minutes > 0:
            raise ValueError(
                f"minutes is {minutes}; the time must be positive. Choose e.g. --minutes 30, or leave the option out "
                "to train to the end"
            )
        errors = self._refuse_runs(trains_here=launcher is None)
        seconds, chosen = None if minutes is None else 60 * minutes, launcher or LocalProcesses()
        chosen.check(self.configs.values(), seconds)
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder), chosen.opened(self.folder):
            missing = {path: config for path, config in self.configs.items() if kept_result(path, config) is None}
            num_at_once = chosen.num_at_once(missing.values(), num_processes, seconds)
            for path, config in missing.items():
                with suppress(ValueError):  # damaged: `run_all` reports the failure of this run
                    check_reusable(path, config)
            for path in self.configs:
                forget_failure(path)  # the run is tried again
            for path, error in errors.items():
                note_failure(path, error)
            num_kept, num_all = len(self.configs) - len(missing), len(self.configs)
            new = dict(missing)  # runs without a result file

            def follow(share: float) -> None:
                done = [path for path in new if (path / MODEL).exists()]
                for path in done:
                    keep_result(path, new.pop(path))
                if done:
                    on_change(self.cells())
                on_progress((num_kept + share * len(missing)) / num_all)

            try:
                follow(0.0)
                run_all(
                    missing,
                    follow,
                    num_processes=num_at_once,
                    seconds=seconds,
                    on_failure=note_failure,
                    launcher=chosen,
                )
            finally:
                for path, config in new.items():
                    keep_result(path, config)
                cells = self.cells()
                on_change(cells)
        return cells

    def _refuse_runs(self, *, trains_here: bool) -> dict[Path, Exception]:
        """Leave out the runs that would fail before their first step, and return the errors.

        If no run is left, raise the first error, before anything is written.
        """
        errors = refused_runs(self.configs, trains_here=trains_here)
        if len(errors) == len(self.configs):
            raise next(iter(errors.values()))
        self.refused |= {path: in_one_line(error) for path, error in errors.items()}
        self.configs = {path: config for path, config in self.configs.items() if path not in errors}
        return errors

    def cells(self) -> list[Cell]:
        """All recipes with their present results. Another process may be training the runs."""
        results: dict[Path, RunResult | None] = dict.fromkeys(self.refused)
        failures = dict(self.refused)
        for path, config in self.configs.items():
            try:
                result = results[path] = result_of(path, config)
            except (ValueError, FileExistsError) as error:  # a damaged or different run must not hide the others
                result, results[path], failures[path] = None, None, in_one_line(error)
            if (reason := path.with_suffix(FAILED)).exists() and not (result and result.is_done):
                failures.setdefault(path, reason.read_text().partition("\n")[0])
        return [
            Cell(
                name,
                RECIPES[name],
                folders,
                tuple(result for path in folders.values() if (result := results[path]) is not None),
                {seed: failures[path] for seed, path in folders.items() if path in failures},
                self._changes_of(folders),
            )
            for name, folders in self.folders.items()
        ]

    def _changes_of(self, folders: dict[int, Path]) -> tuple[str, ...]:
        """The changed settings of a cell: those of its runs, or of the runs to come if there is none yet."""
        begun = {seed: path for seed, path in folders.items() if (path / CONFIG).exists()}
        return over_seeds({seed: self.changes[path] for seed, path in (begun or folders).items()})

    def _folder(self, name: str, seed: int) -> Path:
        return self.folder / RUNS / first_like(name) / f"{SEED}{seed}"


def _seeds_in(folder: Path) -> set[int]:
    """The seeds of the runs in a folder, including runs that failed before they wrote anything."""
    numbers = (path.stem.removeprefix(SEED) for path in folder.glob(f"{SEED}*"))
    return {int(number) for number in numbers if number.isdecimal()}
