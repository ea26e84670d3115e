"""Figures of curves over time for the methods of one setting; None if no run recorded the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from mnar.report.methods import Method
from mnar.report.style import legend_above, marker_of, panels, styled, thousands
from mnar.run.reader import Floats, Run
from mnar.training.metrics import METRICS, Metric, headline_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_MARKERS = 8  # along a line
HEALTH = {
    "mask_rate": ("Mask rate", "% of pseudo-labels used"),
    "guidance/empty_row_share": ("Empty rows of C", "% of samples with an empty row"),
}


@styled
def learning_curves(methods: Sequence[Method]) -> Figure:
    """Every headline metric over time; a dotted line marks the final value of a finished learner without guidance.

    Own data also have the balanced accuracy, because their held-out labels are as skewed as their labels.
    """
    is_own_data = not all(method.run.knows_the_pool for method in methods)
    metrics = [*([METRICS["balanced_accuracy"]] if is_own_data else []), *headline_metrics()]
    figure, axes = panels(len(metrics), columns=3 if is_own_data else 2, height=3.3)
    for panel in axes[1:]:
        panel.sharey(axes[0])  # before drawing, so that the limits fit all panels
    for panel, metric in zip(axes, metrics, strict=True):
        series_of = partial(_metric_series, metric=metric)
        _curves(panel, methods, series_of)
        for method in _baselines(methods):
            if recorded := _recorded(method.counted, series_of):
                final = np.mean([values[-1] for _, values in recorded])
                panel.axhline(100 * final, color=method.colour, linestyle=":", linewidth=1)
        panel.set(title=f"Test {metric.title}", ylabel="%")
    legend_above(figure, axes[:1])
    return figure


def has_pseudo_label_health(method: Method) -> bool:
    return any(_recorded(method.runs, partial(_log_series, key=key)) for key in HEALTH)


@styled
def pseudo_label_health(methods: Sequence[Method]) -> Figure | None:
    series = {key: partial(_log_series, key=key) for key in HEALTH}
    recorded = [key for key in HEALTH if any(_recorded(method.runs, series[key]) for method in methods)]
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=3.0)
    for each, key in zip(axes, recorded, strict=True):
        title, unit = HEALTH[key]
        _curves(each, methods, series[key])
        each.set(title=title, ylabel=unit, ylim=(-3, 103))
    legend_above(figure, axes)
    return figure


def _baselines(methods: Iterable[Method]) -> list[Method]:
    """Finished learners without guidance that also have guided runs in the figure."""
    guided = {method.run.learner for method in methods if not method.run.is_plain}
    finished = [method for method in methods if not method.progress]
    return [method for method in finished if method.run.is_plain and method.run.learner in guided]


Series = tuple[Floats, Floats]  # steps and values


def _metric_series(run: Run, metric: Metric) -> Series:
    """The values of a metric at the evaluations that recorded or determine it."""
    values = [(line["step"], metric.value(line["test"], run.split["test"])) for line in run.lines]
    known = np.array([pair for pair in values if pair[1] is not None], dtype=float).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def _log_series(run: Run, key: str) -> Series:
    return run.series("train", key)


def _recorded(runs: Iterable[Run], series_of: Callable[[Run], Series]) -> list[Series]:
    """Steps and values of the runs that recorded the value."""
    return [series for run in runs if len((series := series_of(run))[0])]


def _curves(axes: Axes, methods: Iterable[Method], series_of: Callable[[Run], Series]) -> None:
    """A thin line per seed, and a thick line for the mean over the counted runs at the steps that all of them have."""
    for method in methods:
        curves = _recorded(method.runs, series_of)
        if not curves:
            continue
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, 100 * values, color=method.colour, linewidth=0.6, alpha=0.45)
        counted = _recorded(method.counted, series_of) or curves
        common = reduce(np.intersect1d, [steps for steps, _ in counted])
        mean = np.mean([values[np.isin(steps, common)] for steps, values in counted], axis=0)
        axes.plot(
            common,
            100 * mean,
            method.line_style,
            color=method.colour,
            linewidth=2,
            label=method.name,
            marker=marker_of(method.colour),
            markersize=4,
            markevery=max(1, len(common) // NUM_MARKERS),
        )
    axes.set(xlabel="step", xlim=(0, None))
    axes.grid(visible=True, axis="y")
    thousands(axes.xaxis)
