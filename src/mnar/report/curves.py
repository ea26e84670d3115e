"""Figures of lines over time, from the methods of one setting; None where no run recorded what it would show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from mnar.report.methods import Method
from mnar.report.style import legend_above, panels, styled, thousands

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def learning_curves(methods: Sequence[Method]) -> Figure:
    """Curves of all methods, and the final result of a learner dashed beside the guided runs of it."""
    figure, (left, right) = panels(2, columns=2, height=3.3)
    right.sharey(left)
    _curves(left, methods, "test", "accuracy")
    _curves(right, methods, "test", "geometric_mean")
    for method in _baselines(methods):
        for axes, key in ((left, "accuracy"), (right, "geometric_mean")):
            final = np.mean([run.lines[-1]["test"][key] for run in method.runs])
            axes.axhline(100 * final, color=method.colour, linestyle="--", linewidth=1)
    left.set(title="Test accuracy", ylabel="%")
    right.set(title="Geometric mean of recalls", ylabel="%")
    legend_above(figure, [left])
    return figure


@styled
def pseudo_label_health(methods: Sequence[Method]) -> Figure | None:
    shown = {
        "mask_rate": ("Mask rate", "% of pseudo-labels used"),
        "guidance/empty_row_share": ("Empty rows of C", "% of samples with an empty row"),
    }
    runs = [run for method in methods for run in method.runs]
    recorded = [key for key in shown if any(len(run.series("train", key)[0]) for run in runs)]
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=3.0)
    for each, key in zip(axes, recorded, strict=True):
        title, unit = shown[key]
        _curves(each, methods, "train", key)
        each.set(title=title, ylabel=unit, ylim=(-3, 103))
    legend_above(figure, axes)
    return figure


def _baselines(methods: Iterable[Method]) -> list[Method]:
    """Learners left to themselves, where guided runs of the same stand beside them."""
    guided = {method.run.learner for method in methods if not method.run.is_plain}
    return [method for method in methods if method.run.is_plain and method.run.learner in guided]


def _curves(axes: Axes, methods: Iterable[Method], section: str, key: str) -> None:
    """A thin line a seed and a thick one for the mean over the steps that all seeds have reached."""
    for method in methods:
        curves = [run.series(section, key) for run in method.runs]
        if not all(len(steps) for steps, _ in curves):
            continue
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, 100 * values, color=method.colour, linewidth=0.6, alpha=0.45)
        common = reduce(np.intersect1d, [steps for steps, _ in curves])
        mean = np.mean([values[np.isin(steps, common)] for steps, values in curves], axis=0)
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
