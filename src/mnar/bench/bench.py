"""Cells of the paper's tables, trained with several seeds, to be shown beside what the paper printed.

OUT/runs/RECIPE/seed-N          a run folder; recipes with equal configurations share one
OUT/runs/RECIPE/seed-N.json     beside it: what it came to (mnar.bench.run_result)
OUT/runs/RECIPE/seed-N.failed   or why it failed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from mnar.bench.cell import Cell, choose, first_like
from mnar.bench.parallel import check_reusable, num_cores, run_all
from mnar.bench.run_result import FAILED, RunResult, in_one_line, keep_result, kept_result, note_failure, result_of
from mnar.config import RunConfig
from mnar.recipes import RECIPES, configure
from mnar.run import RunFolder
from mnar.run.file_names import MODEL
from mnar.run.lock import locked

RUNS, SEED = "runs", "seed-"


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

    @classmethod
    def there(
        cls,
        folder: Path,
        patterns: Iterable[str] = (),
        *,
        seeds: Sequence[int] = (),
        iterations: int | None = None,
        data: str | None = None,
        settings: Sequence[str] = (),
    ) -> Bench:
        """What a folder has, or those of it that are named; its runs as they are, unless settings are given."""
        trained = {name: found for name in RECIPES if (found := _seeds_in(folder / RUNS / name))}
        if not trained:
            raise FileNotFoundError(f"nothing at {folder}; name the folder given to `mnar bench` as --out")
        seeds = seeds or sorted(set().union(*trained.values()))
        bench = cls(folder, patterns or trained, seeds=seeds, iterations=iterations, data=data, settings=settings)
        if iterations is None and not settings:
            for path in bench.configs:
                with suppress(ValueError, FileNotFoundError):  # damaged, which `cells` tells, or not begun
                    bench.configs[path] = RunFolder(path).config()
        return bench

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
            missing = {path: config for path, config in self.configs.items() if kept_result(path, config) is None}
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
                    keep_result(path, new.pop(path))
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
                    on_failure=note_failure,
                )
            finally:
                for path, config in new.items():
                    keep_result(path, config)
                cells = self.cells()
                on_change(cells)
        return cells

    def cells(self) -> list[Cell]:
        """All recipes as they stand, whoever is training them now."""
        results: dict[Path, RunResult | None] = dict.fromkeys(self.refused)
        failures = dict(self.refused)
        for path, config in self.configs.items():
            try:
                result = results[path] = result_of(path, config)
            except (ValueError, FileExistsError) as error:  # damaged, or another run: it does not hide the others
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
            )
            for name, folders in self.folders.items()
        ]

    def _folder(self, name: str, seed: int) -> Path:
        return self.folder / RUNS / first_like(name) / f"{SEED}{seed}"


def _seeds_in(folder: Path) -> set[int]:
    """Of the runs in it, and of those that failed before they began."""
    numbers = (path.stem.removeprefix(SEED) for path in folder.glob(f"{SEED}*"))
    return {int(number) for number in numbers if number.isdecimal()}


def _num_processes(configs: Iterable[RunConfig]) -> int:
    uses_gpu = torch.cuda.is_available() and any(config.engine.device != "cpu" for config in configs)
    return 1 if uses_gpu else num_cores()  # one run fills a GPU
