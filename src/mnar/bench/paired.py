"""Differences between the methods of a setting, paired by seed.

Two runs with the same seed have the same labels and the same pool. The luck of that random draw mostly cancels in their
difference. It is often larger than the difference between two methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mnar.bench.cell import Cell
from mnar.report import Spread
from mnar.training.headline import headline_name
from mnar.training.metrics import headline_metrics

REFERENCE = "fixmatch"  # the method that the others are compared with, if the setting has it
LEAST_SEEDS = 2
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean difference over the seeds, its standard deviation, and the interval of the mean. 0.01 is one point."""

    mean: float
    sd: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Difference:
        """The interval is that of Student's t distribution."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]

        spread = Spread.of(values)
        assert spread.sd is not None  # there are at least two values
        t = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
        half = t * spread.sd / math.sqrt(len(values))
        return cls(spread.mean, spread.sd, spread.mean - half, spread.mean + half)

    @property
    def points(self) -> str:
        return f"{100 * self.mean:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


@dataclass(frozen=True)
class Comparison:
    """A method minus the reference of its setting, over the seeds that both have finished."""

    cell: Cell
    reference: Cell
    seeds: tuple[int, ...]
    differences: dict[str, Difference]  # by the name of the metric


def comparisons(cells: Sequence[Cell]) -> list[Comparison]:
    """Compare every method with the reference of its setting: `fixmatch`, or the first method of the setting.

    A method that has fewer than two finished seeds in common with the reference is left out.
    """
    settings: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        settings.setdefault((cell.table, cell.setting), []).append(cell)
    found = []
    for methods in settings.values():
        reference = next((cell for cell in methods if cell.name.endswith(f"/{REFERENCE}")), methods[0])
        found += [compared for cell in methods if cell is not reference and (compared := _compare(cell, reference))]
    return found


def _compare(cell: Cell, reference: Cell) -> Comparison | None:
    ours, theirs = ({run.seed: run.headline for run in each.results if run.is_done} for each in (cell, reference))
    seeds = tuple(seed for seed in ours if seed in theirs)
    if len(seeds) < LEAST_SEEDS:
        return None
    differences = {}
    for metric in headline_metrics():
        figure = headline_name(metric.name)
        if all(figure in figures[seed] for figures in (ours, theirs) for seed in seeds):
            differences[metric.name] = Difference.of([ours[seed][figure] - theirs[seed][figure] for seed in seeds])
    return Comparison(cell, reference, seeds, differences)
