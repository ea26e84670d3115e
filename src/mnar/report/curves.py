"""Figures of lines over time, from the methods of one setting; None where no run recorded what it would show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from mnar.report.methods import Method
from mnar.report.style import legend_above, panels, styled, thousands
from mnar.run.reader import Floats, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEALTH = {
    "mask_rate": ("Mask rate", "% of pseudo-labels used"),
    "guidance/empty_row_share": ("Empty rows of C", "% of samples with an empty row"),
}


@styled
def learning_curves(methods: Sequence[Method]) -> Figure:
    """Curves of all methods, and the final result of a finished learner dotted beside the guided runs of it."""
    figure, (left, right) = panels(2, columns=2, height=3.3)
    right.sharey(left)
    _curves(left, methods, "test", "accuracy")
    _curves(right, methods, "test", "geometric_mean")
    for method in _baselines(methods):
        for axes, key in ((left, "accuracy"), (right, "geometric_mean")):
            final = np.mean([run.lines[-1]["test"][key] for run in method.counted])
            axes.axhline(100 * final, color=method.colour, linestyle=":", linewidth=1)
    left.set(title="Test accuracy", ylabel="%")
    right.set(title="Geometric mean of recalls", ylabel="%")
    legend_above(figure, [left])
    return figure


def has_pseudo_label_health(method: Method) -> bool:
    return any(_recorded(method.runs, "train", key) for key in HEALTH)


@styled
def pseudo_label_health(methods: Sequence[Method]) -> Figure | None:
    recorded = [key for key in HEALTH if any(_recorded(method.runs, "train", key) for method in methods)]
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=3.0)
    for each, key in zip(axes, recorded, strict=True):
        title, unit = HEALTH[key]
        _curves(each, methods, "train", key)
        each.set(title=title, ylabel=unit, ylim=(-3, 103))
    legend_above(figure, axes)
    return figure


def _baselines(methods: Iterable[Method]) -> list[Method]:
    """Finished learners left to themselves, where guided runs of the same stand beside them."""
    guided = {method.run.learner for method in methods if not method.run.is_plain}
    finished = [method for method in methods if not method.progress]
    return [method for method in finished if method.run.is_plain and method.run.learner in guided]


def _recorded(runs: Iterable[Run], section: str, key: str) -> list[tuple[Floats, Floats]]:
    """Steps and values of those that have any."""
    return [series for run in runs if len((series := run.series(section, key))[0])]


def _curves(axes: Axes, methods: Iterable[Method], section: str, key: str) -> None:
    """A thin line a seed that recorded it, and a thick one for the mean of those that count, where all have a value."""
    for method in methods:
        curves = _recorded(method.runs, section, key)
        if not curves:
            continue
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, 100 * values, color=method.colour, linewidth=0.6, alpha=0.45)
        counted = _recorded(method.counted, section, key) or curves
        common = reduce(np.intersect1d, [steps for steps, _ in counted])
        mean = np.mean([values[np.isin(steps, common)] for steps, values in counted], axis=0)
        marker = "o" if len(common) == 1 else None  # a line of one point cannot be seen
        axes.plot(
            common,
            100 * mean,
            method.line_style,
            color=method.colour,
            linewidth=2,
            label=method.name,
            marker=marker,
        )
    axes.set(xlabel="step", xlim=(0, None))
    axes.grid(visible=True, axis="y")
    thousands(axes.xaxis)
