"""One function a figure, from runs to a matplotlib Figure; None where no run recorded what it would show.

Wherever classes stand in a row they stand from the most labels to the fewest, so that a bias has a direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mnar.report.record import Floats, Run, by_method
from mnar.report.style import (
    FAINT,
    INK,
    class_names,
    class_ticks,
    classes_label,
    colour_scale,
    colours,
    heat_map,
    is_named,
    lighter,
    line_styles,
    panels,
    room_for_names,
    stacked,
    styled,
    thousands,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIME_COLUMNS = 200  # of a class-by-step heat map: about as many as a panel has pixels to tell apart


@styled
def learning_curves(runs: Sequence[Run]) -> Figure:
    methods = by_method(runs)
    figure, (left, right) = panels(2, columns=2, height=3.3)
    right.sharey(left)
    _curves(left, methods, "test", "accuracy")
    _curves(right, methods, "test", "geometric_mean")
    left.set(title="Test accuracy", ylabel="%")
    right.set(title="Geometric mean of recalls", ylabel="%")
    _method_legend(figure, [left])
    return figure


@styled
def pseudo_label_health(runs: Sequence[Run]) -> Figure | None:
    shown = {
        "mask_rate": ("Mask rate", "% of pseudo-labels used"),
        "guidance/empty_row_share": ("Empty rows of C", "% of samples with an empty row"),
    }
    recorded = [key for key in shown if any(len(run.series("train", key)[0]) for run in runs)]
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=3.0)
    for each, key in zip(axes, recorded, strict=True):
        title, unit = shown[key]
        _curves(each, by_method(runs), "train", key)
        each.set(title=title, ylabel=unit, ylim=(-3, 103))
    _method_legend(figure, axes)
    return figure


@styled
def transition_matrices(runs: Sequence[Run]) -> Figure | None:
    """C early, in the middle and late in the first run of each method that tracks it."""
    from matplotlib.colors import SymLogNorm

    methods = by_method(runs)
    tracked = {method: group[0] for method, group in methods.items() if len(_transitions(group[0])[0])}
    if not tracked:
        return None
    figure, strips = stacked(len(tracked), height=3.7 + room_for_names(runs))
    for strip, (method, run) in zip(strips, tracked.items(), strict=True):
        steps, matrices = _transitions(run)
        middle = int(np.abs(steps - (steps[0] + steps[-1]) / 2).argmin())
        shown = sorted({0, middle, len(steps) - 1})
        # C shrinks by orders of magnitude as training settles: a logarithm shows both ends on one scale.
        most = max(10, matrices[shown].max())
        norm = SymLogNorm(1, vmin=0, vmax=most)
        axes = strip.subplots(1, 3, sharey=True)
        for unused in axes[len(shown) :]:
            unused.set_visible(False)
        for panel, i in zip(axes[: len(shown)], shown, strict=True):
            matrix = matrices[i][np.ix_(run.class_order, run.class_order)]
            image = heat_map(panel, matrix, cmap="Blues", norm=norm)
            class_ticks(panel.xaxis, class_names(run), upright=True)
            class_ticks(panel.yaxis, class_names(run))
            panel.set_title(f"step {steps[i]:,.0f}: {matrix.sum():,.0f} transitions", weight="normal", size=9)
            panel.set_xlabel(classes_label(run, "to class"))
        axes[0].set_ylabel(classes_label(run, "from class"))
        strip.suptitle(method, x=0, ha="left", size=10, weight="bold", color=colours(methods)[method])
        powers = range(1 + int(np.log10(most)))
        scale = strip.colorbar(image, ax=axes, ticks=[0, *(10**power for power in powers)], format="%d", shrink=0.8)
        scale.set_label("transitions in the window")
        scale.minorticks_off()
    return figure


@styled
def pseudo_label_errors(runs: Sequence[Run]) -> Figure | None:
    """Error per true class over time, averaged over seeds. Of people's own data nobody knows it."""
    methods = {
        method: [run for run in group if np.isfinite(run.series("pseudo", "error")[1]).any()]
        for method, group in by_method(runs).items()
    }
    recorded = {method: group for method, group in methods.items() if group}
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=2.8)
    for panel, (method, group) in zip(axes, recorded.items(), strict=True):
        run = group[0]
        end = max(run.lines[-1]["step"] for run in group)
        errors = _mean_where_known([_over_time(run, end)[run.class_order] for run in group])
        extent = (0, end, run.num_classes - 0.5, -0.5)
        image = heat_map(panel, 100 * errors, cmap="OrRd", vmin=0, vmax=100, extent=extent, aspect="auto")
        class_ticks(panel.yaxis, class_names(run))
        thousands(panel.xaxis)
        panel.set(xlabel="step", ylabel=classes_label(run, "true class"))
        panel.set_title(method, color=colours(methods)[method])
    colour_scale(figure, axes, image, "% wrong")
    return figure


@styled
def confusion_matrices(runs: Sequence[Run]) -> Figure | None:
    """Test confusion at the end, all seeds together, each row in percent of its true class."""
    from matplotlib.colors import PowerNorm

    methods = by_method(runs)
    recorded = {}
    for method, group in methods.items():
        matrices = [run.series("matrices", "test_confusion")[1] for run in group]
        last = [each[-1] for each in matrices if len(each)]
        if last:
            recorded[method] = np.sum(last, axis=0)
    if not recorded:
        return None
    norm = PowerNorm(0.5, vmin=0, vmax=100)  # the root, or the errors of 100 classes would be too thin to see
    figure, axes = panels(len(recorded), columns=2, height=4.4)
    for panel, (method, counts) in zip(axes, recorded.items(), strict=True):
        run = methods[method][0]
        shares = 100 * counts / counts.sum(1, keepdims=True).clip(min=1)
        shares = shares[np.ix_(run.class_order, run.class_order)]
        image = heat_map(panel, shares, cmap="Blues", norm=norm)
        if is_named(run):
            _numbers(panel, shares)
        class_ticks(panel.xaxis, class_names(run), upright=True)
        class_ticks(panel.yaxis, class_names(run))
        panel.set(xlabel=classes_label(run, "predicted class"), ylabel=classes_label(run, "true class"))
        panel.set_title(method, color=colours(methods)[method])
    colour_scale(figure, axes, image, "% of the true class")
    return figure


@styled
def class_shares(runs: Sequence[Run]) -> Figure:
    """Class shares at the end: labels, pseudo-labels, test predictions, and what they should be."""
    methods = by_method(runs)
    figure, axes = panels(len(methods), columns=2, height=2.9 + room_for_names(runs))
    for panel, (method, group) in zip(axes, methods.items(), strict=True):
        run, colour = group[0], colours(methods)[method]
        order = run.class_order
        labels, pool, test = (_percent(run.split[key])[order] for key in ("labeled", "unlabeled", "test"))
        bars = [Bars("labels", labels, None, FAINT)]
        if all("pseudo" in run.lines[-1] for run in group):
            truth = None if run.split.get("unknown") else pool  # of own data nobody knows it
            bars.append(Bars("pseudo-labels", _late(group, "pseudo", "share")[order], truth, lighter(colour)))
        bars.append(Bars("test predictions", _late(group, "test", "predicted_share")[order], test, colour))
        (_grouped_bars if is_named(run) else _outlines)(panel, bars)
        class_ticks(panel.xaxis, class_names(run), upright=True)
        panel.set(xlabel=classes_label(run, "class"), ylabel="% of samples", ylim=(0, None))
        panel.set_title(method, color=colour)
        _share_legend(panel)
    return figure


class Bars(NamedTuple):
    """Shares of the classes, [k], and what they should be."""

    name: str
    percent: Floats
    truth: Floats | None
    colour: str


def _grouped_bars(axes: Axes, bars: Sequence[Bars]) -> None:
    width = 0.8 / len(bars)
    for i, each in enumerate(bars):
        middle = np.arange(len(each.percent)) + (i - (len(bars) - 1) / 2) * width
        axes.bar(middle, each.percent, width, color=each.colour, label=each.name)
        if each.truth is not None:
            axes.hlines(each.truth, middle - width / 2, middle + width / 2, color=INK, linewidth=1.5, label="truth")


def _outlines(axes: Axes, bars: Sequence[Bars]) -> None:
    """The same for many classes: a staircase each instead of hundreds of slivers."""
    edges = np.arange(len(bars[0].percent) + 1) - 0.5
    for each in bars:
        if each.truth is None:
            axes.stairs(each.percent, edges, color=each.colour, fill=True, label=each.name)
        else:
            axes.stairs(each.truth, edges, color=INK, linewidth=0.8, baseline=None, label="truth")
            axes.stairs(each.percent, edges, color=each.colour, linewidth=1.2, baseline=None, label=each.name)


def _share_legend(axes: Axes) -> None:
    """Each name once, the truth last."""
    handles = {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    handles["truth"] = handles.pop("truth")
    axes.legend(handles.values(), handles.keys(), loc="upper right", fontsize=8)


def _curves(axes: Axes, methods: Mapping[str, Sequence[Run]], section: str, key: str) -> None:
    """A thin line a seed and a thick one for the mean over the steps that all seeds have reached."""
    colour, line_style = colours(methods), line_styles(methods)
    for method, group in methods.items():
        curves = [run.series(section, key) for run in group]
        if not all(len(steps) for steps, _ in curves):
            continue
        if len(curves) > 1:
            for steps, values in curves:
                axes.plot(steps, 100 * values, color=colour[method], linewidth=0.6, alpha=0.45)
        common = reduce(np.intersect1d, [steps for steps, _ in curves])
        mean = np.mean([values[np.isin(steps, common)] for steps, values in curves], axis=0)
        marker = "o" if len(common) == 1 else None  # a line of one point cannot be seen
        axes.plot(
            common, 100 * mean, line_style[method], color=colour[method], linewidth=2, label=method, marker=marker
        )
    axes.set(xlabel="step", xlim=(0, None))
    axes.grid(visible=True, axis="y")
    thousands(axes.xaxis)


def _method_legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """Of all methods, each once: not every panel has a curve of each."""
    named: dict[str, Artist] = {}
    for axes in panels:
        for handle, method in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(method, handle)
    methods, handles = list(named), list(named.values())
    fit = 140 // (8 + max(map(len, methods)))  # a full-width line holds about 140 characters
    figure.legend(handles, methods, loc="outside upper left", ncols=max(1, min(4, fit)))


def _numbers(axes: Axes, percent: Floats) -> None:
    """Whole percents in the cells; what rounds to nothing is left out."""
    size = min(8.0, 90 / len(percent))
    for (row, column), value in np.ndenumerate(percent):
        if value >= 0.5:
            colour = "white" if value > 35 else INK
            text = axes.text(column, row, f"{value:.0f}", ha="center", va="center", size=size, color=colour)
            text.set_in_layout(False)  # hundreds of them would make the layout slow


def _transitions(run: Run) -> tuple[Floats, Floats]:
    """Steps and matrices C from the first in which a prediction has moved."""
    steps, matrices = run.series("matrices", "transitions")
    moved = matrices.any(axis=(1, 2)) if len(steps) else np.zeros(0, dtype=bool)
    return steps[moved], matrices[moved]


def _over_time(run: Run, end: float) -> Floats:
    """Pseudo-label error [k, columns] at even steps; an evaluation speaks for the steps before it."""
    steps, errors = run.series("pseudo", "error")
    at = (np.arange(TIME_COLUMNS) + 0.5) * end / TIME_COLUMNS
    evaluation = np.searchsorted(steps, at)
    padded = np.vstack([errors, np.full(errors.shape[1], np.nan)])  # steps that this run has not reached
    return padded[evaluation].T


def _mean_where_known(stacks: Sequence[Floats]) -> Floats:
    known = ~np.isnan(stacks)
    total, count = np.where(known, stacks, 0).sum(0), known.sum(0)
    return np.where(count > 0, total / count.clip(min=1), np.nan)


def _late(runs: Sequence[Run], section: str, key: str) -> Floats:
    """Shares at the last evaluation in percent, averaged over seeds."""
    return np.asarray(100 * np.mean([run.series(section, key)[1][-1] for run in runs], axis=0))


def _percent(counts: Sequence[int]) -> Floats:
    return 100 * np.array(counts) / sum(counts)
