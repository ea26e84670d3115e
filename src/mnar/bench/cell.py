"""A cell of the paper's tables: one recipe with its runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from mnar.bench.run_result import RunResult
from mnar.config import PUBLISHED, RunConfig
from mnar.recipes import RECIPES, TITLES, Recipe, configure, no_recipe
from mnar.report import Spread, over_runs
from mnar.run.file_names import CONFIG
from mnar.training.headline import Headline


@dataclass(frozen=True)
class Cell:
    """A recipe, the results of its runs, and the reasons why runs failed."""

    name: str
    recipe: Recipe
    folders: dict[int, Path]  # by seed
    results: tuple[RunResult, ...]  # one for each run that has been evaluated
    failures: dict[int, str]  # by seed
    changes: tuple[str, ...] = ()  # settings in which the runs differ from the recipe, as --set takes them

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]

    @property
    def setting(self) -> str:
        return self.name.split("/", 2)[1]

    @property
    def method(self) -> str:
        """The method of the recipe and the changed settings, e.g. "fixmatch (guidance.name=prg)"."""
        return _with_changes(self.name.split("/", 2)[2], self.changes)

    @property
    def full_name(self) -> str:
        """The name of the recipe and the changed settings."""
        return _with_changes(self.name, self.changes)

    @property
    def paper(self) -> Recipe:
        """The recipe with the paper's figures, or without them if settings were changed."""
        return Recipe(self.recipe.sections) if self.changes else self.recipe

    @property
    def counted(self) -> tuple[RunResult, ...]:
        """The results that count: those of finished runs, or all if no run is finished."""
        return tuple(result for result in self.results if result.is_done) or self.results

    @cached_property
    def headline(self) -> Headline[Spread] | None:
        """The headline figures of the counted runs, with their spread."""
        return over_runs([result.headline for result in self.counted]) if self.counted else None

    @property
    def minutes(self) -> float | None:
        """The average duration of a counted run."""
        return fmean(result.minutes for result in self.counted) if self.counted else None

    @property
    def images_per_second(self) -> float | None:
        speeds = [result.images_per_second for result in self.counted if result.images_per_second]
        return fmean(speeds) if speeds else None

    @property
    def is_shortened(self) -> bool:
        """Whether the runs have fewer steps than the recipe."""
        return any(result.iterations < _recipe_config(self.name).train.iterations for result in self.results)

    @property
    def schedules(self) -> list[str]:
        """The names of the runs' schedules, if any run has another one than the published schedule."""
        names = sorted({result.schedule for result in self.results})
        return [] if names == [PUBLISHED] else names

    @property
    def is_short(self) -> bool:
        """Whether the headline evaluations of a counted run cover much of the run."""
        return any(result.is_short for result in self.counted)

    @property
    def num_done(self) -> int:
        return sum(result.is_done for result in self.results)

    @property
    def is_cut_off(self) -> bool:
        """Whether a run is neither finished nor failed."""
        return self.num_done + len(self.failures) < len(self.folders)

    @property
    def missing(self) -> str:
        """The runs that are not finished and how far they are, as text; empty if all are finished."""
        reached = {result.seed: f"seed {result.seed} at step {result.step:,}" for result in self.results}
        done = {result.seed for result in self.results if result.is_done}
        waiting = {
            seed: f"seed {seed} {'before its first evaluation' if (path / CONFIG).exists() else 'not started'}"
            for seed, path in self.folders.items()
        }
        failed = {seed: f"seed {seed} failed" for seed in self.failures}
        states = {**waiting, **reached, **failed}
        return ", ".join(state for seed, state in states.items() if seed not in done)


def _with_changes(name: str, changes: Iterable[str]) -> str:
    return f"{name} ({', '.join(changes)})" if changes else name


def choose(patterns: Iterable[str]) -> list[str]:
    """The recipes with these names, patterns ("table1/cifar10-*") or tables ("table1"), in the order of the list."""
    chosen: set[str] = set()
    for pattern in patterns:
        below = f"{pattern.rstrip('/')}/"
        found = [name for name in RECIPES if fnmatchcase(name, pattern) or name.startswith(below)]
        if not found:
            raise no_recipe(pattern, [*TITLES, *RECIPES])
        chosen.update(found)
    if not chosen:
        raise ValueError('no recipe was named; `mnar list recipes` shows them all, and "table1" selects a whole table')
    return [name for name in RECIPES if name in chosen]


@cache
def first_like(name: str) -> str:
    """The first recipe with the same configuration as this one."""
    parts = _parts(name)
    candidates = [other for other in RECIPES if _parts(other) == parts]
    return next(other for other in candidates if other == name or _recipe_config(other) == _recipe_config(name))


@cache
def _recipe_config(name: str) -> RunConfig:
    return configure(recipe=name)


@cache
def _parts(name: str) -> tuple[Any, ...]:
    """The parts of a recipe. Equal runs have equal parts, which are cheaper to compare than configurations."""
    sections = RECIPES[name].sections
    return tuple(sections.get(section, {}).get("name") for section in ("dataset", "protocol", "learner", "guidance"))
