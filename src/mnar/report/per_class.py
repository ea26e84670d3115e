"""Figures of values per class for the methods of one setting: errors, precision, recall, class shares, estimates.

The classes are ordered from the most labels to the fewest, so that a bias towards popular classes is visible. A
function returns None if no run recorded the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnar.report.methods import Method
from mnar.report.style import (
    FAINT,
    HATCHES,
    INK,
    class_names,
    class_ticks,
    classes_label,
    colour_scale,
    heat_map,
    is_named,
    legend_above,
    lighter,
    numbers,
    panels,
    room_for_names,
    styled,
    thousands,
)
from mnar.run.reader import Floats, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIME_COLUMNS = 200  # columns of a class-by-step heat map; a panel has no room for more
POOL_SHARE = "pool_share"  # the estimate of a guidance that has a truth to compare with
TIMES = (0.2, 0.6, 1.0)  # shares of a run; the paper's table has 30,000, 90,000 and 150,000 steps


def has_pseudo_label_errors(method: Method) -> bool:
    return bool(_with_errors_recorded(method).runs)


@styled
def pseudo_label_errors(methods: Sequence[Method]) -> Figure | None:
    """The error of each true class over time, averaged over seeds; needs the true classes of the pool."""
    recorded = [_with_errors_recorded(method) for method in methods if has_pseudo_label_errors(method)]
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=2.8)
    for panel, method in zip(axes, recorded, strict=True):
        run = method.run
        end = max(run.step for run in method.runs)
        errors = _mean_where_known([_over_time(run, end)[run.class_order] for run in method.runs])
        extent = (0, end, run.num_classes - 0.5, -0.5)
        image = heat_map(panel, 100 * errors, cmap="OrRd", vmin=0, vmax=100, extent=extent, aspect="auto")
        class_ticks(panel.yaxis, class_names(run))
        thousands(panel.xaxis)
        panel.set(xlabel="step", ylabel=classes_label(run, "true class"))
        panel.set_title(method.name, color=method.colour)
    colour_scale(figure, axes, image, "% wrong")
    return figure


def has_precision(method: Method) -> bool:
    return all(len(run.series("test", "precision")[0]) for run in method.counted)


@styled
def precision_and_recall(methods: Sequence[Method]) -> Figure | None:
    """Precision and recall on the test set at three steps, averaged over seeds."""
    recorded = [method for method in methods if has_precision(method)]
    if not recorded:
        return None
    most_classes = max(method.run.num_classes for method in recorded)
    height = 1.1 + 0.2 * most_classes if most_classes <= 20 else 4.0
    figure, axes = panels(len(recorded), columns=2, height=height)
    for panel, method in zip(axes, recorded, strict=True):
        run = method.run
        end = min(run.step for run in method.counted)
        scores = {key: [_at(method, key, share * end) for share in TIMES] for key in ("precision", "recall")}
        columns = 100 * np.transpose([values for each in scores.values() for _, values in each])
        columns[np.equal(run.split["test"], 0)] = np.nan  # neither score is defined without a test sample
        columns = columns[run.class_order]
        image = heat_map(panel, columns, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        if is_named(run):
            numbers(panel, columns, size=8, dark_from=55)
        panel.axvline(len(TIMES) - 0.5, color="white", linewidth=4)
        class_ticks(panel.yaxis, class_names(run))
        steps = [f"{step:,.0f}" for each in scores.values() for step, _ in each]
        panel.set_xticks(range(len(steps)), steps)
        above = panel.secondary_xaxis("top")
        above.set_ticks([len(TIMES) / 2 - 0.5 + len(TIMES) * i for i in range(len(scores))], list(scores))
        above.tick_params(length=0)
        panel.set(xlabel="step", ylabel=classes_label(run, "class"))
        panel.set_title(method.name, color=method.colour, pad=20)  # points: `above` stands below it
    colour_scale(figure, axes, image, "%")
    return figure


@styled
def class_shares(methods: Sequence[Method]) -> Figure:
    """The final class shares of labels, pseudo-labels and test predictions, beside the true shares.

    Own data have no true shares to draw: the classes of the pool are unknown, and the held-out labels have the class
    distribution of the labels. The estimate of the guidance is drawn instead, if there is one.
    """
    room = room_for_names([method.run for method in methods])
    figure, axes = panels(len(methods), columns=2, height=3.0 + room)
    for panel, method in zip(axes, methods, strict=True):
        run, order = method.run, method.run.class_order
        labels, test = (_percent(run.split[key])[order] for key in ("labeled", "test"))
        bars = [Bars("labels", labels, None, FAINT)]
        if all("pseudo" in run.lines[-1] for run in method.counted):
            truth = _percent(run.split["unlabeled"])[order] if run.knows_the_pool else None
            share = _late(method.counted, "pseudo", "share")[order]
            bars.append(Bars("pseudo-labels", share, truth, lighter(method.colour)))
        if not run.knows_the_pool and has_estimate(method, POOL_SHARE):
            bars.append(Bars("estimated pool", _estimate(method, POOL_SHARE)[order], None, INK))
        share = _late(method.counted, "test", "predicted_share")[order]
        scored = "test predictions" if run.knows_the_pool else f"predictions for {_scored_labels(run)}"
        bars.append(Bars(scored, share, test if run.knows_the_pool else None, method.colour))
        (_grouped_bars if is_named(run) else _outlines)(panel, bars)
        class_ticks(panel.xaxis, class_names(run), upright=True)
        panel.set(xlabel=classes_label(run, "class"), ylabel="% of samples", ylim=(0, None))
        panel.set_title(method.name, color=method.colour, pad=20)  # points: the legend stands below it
        _share_legend(panel)
    return figure


def estimate_names(methods: Sequence[Method]) -> list[str]:
    """The names of all values per class that guidances estimated (`Guidance.estimates`), e.g. "pool_share"."""
    lines = [line for method in methods for run in method.runs for line in run.lines]
    return list(dict.fromkeys(name for line in lines for name in line.get("guidance", {})))


def has_estimate(method: Method, name: str) -> bool:
    return any(len(run.series("guidance", name)[0]) for run in method.counted)


@styled
def guidance_estimates(methods: Sequence[Method], name: str) -> Figure | None:
    """The last estimate of each method's guidance per class, averaged over seeds; pool shares with the truth."""
    recorded = [method for method in methods if has_estimate(method, name)]
    if not recorded:
        return None
    figure, axes = panels(len(recorded), columns=2, height=2.6 + room_for_names([method.run for method in recorded]))
    for panel, method in zip(axes, recorded, strict=True):
        run, order = method.run, method.run.class_order
        truth = _percent(run.split["unlabeled"])[order] if name == POOL_SHARE and run.knows_the_pool else None
        estimate = _estimate(method, name)[order]
        bars = [Bars(name, estimate, truth, method.colour)]
        (_grouped_bars if is_named(run) else _outlines)(panel, bars)
        class_ticks(panel.xaxis, class_names(run), upright=True)
        panel.set(xlabel=classes_label(run, "class"), ylabel="%", ylim=(0 if estimate.min() >= 0 else None, None))
        panel.set_title(method.name, color=method.colour)
    return figure


def has_recall_of_own_data(method: Method) -> bool:
    return not method.run.knows_the_pool and all("recall" in run.lines[-1]["test"] for run in method.counted)


@styled
def recalls(methods: Sequence[Method]) -> Figure | None:
    """The final recall of each class on own data, one bar per method, e.g. of a run and its labels-only baseline."""
    methods = [method for method in methods if has_recall_of_own_data(method)]
    if not methods:
        return None
    run, order = methods[0].run, methods[0].run.class_order
    counts = np.array(run.split["test"])[order]
    bars = []
    for method in methods:
        percent = np.where(counts > 0, _late(method.counted, "test", "recall")[order], np.nan)
        bars.append(Bars(method.name, percent, None, method.colour))
    figure, (panel,) = panels(1, columns=1, height=2.8 + room_for_names([run]))
    (_grouped_bars if is_named(run) else _outlines)(panel, bars)
    names = [
        f"{name} ({count})" if count else f"{name} –" for name, count in zip(class_names(run), counts, strict=True)
    ]
    class_ticks(panel.xaxis, names, upright=True)
    panel.set(xlabel=classes_label(run, f"class (number of {_scored_labels(run)})"), ylabel="recall, %", ylim=(0, 103))
    panel.grid(visible=True, axis="y")
    panel.set_axisbelow(True)
    legend_above(figure, [panel])
    return figure


def _scored_labels(run: Run) -> str:
    """How the labels that score a model on own data are called."""
    return "training labels" if run.is_tested_on_training_labels else "held-out labels"


class Bars(NamedTuple):
    """Class shares in percent, [k], and the true shares."""

    name: str
    percent: Floats
    truth: Floats | None
    colour: str


def _grouped_bars(axes: Axes, bars: Sequence[Bars]) -> None:
    width = 0.8 / len(bars)
    for i, each in enumerate(bars):
        middle = np.arange(len(each.percent)) + (i - (len(bars) - 1) / 2) * width
        look: dict[str, Any] = {"hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white", "linewidth": 0}
        axes.bar(middle, each.percent, width, color=each.colour, label=each.name, **look)
        if each.truth is not None:
            axes.hlines(each.truth, middle - width / 2, middle + width / 2, color=INK, linewidth=1.5, label="truth")


def _outlines(axes: Axes, bars: Sequence[Bars]) -> None:
    """The same for many classes: one outline per series instead of hundreds of narrow bars."""
    edges = np.arange(len(bars[0].percent) + 1) - 0.5
    for each in bars:
        if each.truth is None:
            axes.stairs(each.percent, edges, color=each.colour, fill=True, label=each.name)
        else:
            axes.stairs(each.truth, edges, color=INK, linewidth=0.8, baseline=None, label="truth")
            axes.stairs(each.percent, edges, color=each.colour, linewidth=1.2, baseline=None, label=each.name)


def _share_legend(axes: Axes) -> None:
    """A legend above the panel, where no bar can hide it; the truth comes last."""
    handles = {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if "truth" in handles:
        handles["truth"] = handles.pop("truth")
    axes.legend(
        handles.values(),
        handles.keys(),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        fontsize=8,
        borderaxespad=0,
        columnspacing=1.2,
        handlelength=1.2,
        handletextpad=0.5,
    )


def _with_errors_recorded(method: Method) -> Method:
    return method._replace(runs=[run for run in method.runs if np.isfinite(run.series("pseudo", "error")[1]).any()])


def _over_time(run: Run, end: float) -> Floats:
    """The pseudo-label error [k, columns] at evenly spaced steps; an evaluation covers the steps before it."""
    steps, errors = run.series("pseudo", "error")
    at = (np.arange(TIME_COLUMNS) + 0.5) * end / TIME_COLUMNS
    evaluation = np.searchsorted(steps, at)
    padded = np.vstack([errors, np.full(errors.shape[1], np.nan)])  # for the steps that this run has not reached
    return padded[evaluation].T


def _mean_where_known(stacks: Sequence[Floats]) -> Floats:
    known = ~np.isnan(stacks)
    total, count = np.where(known, stacks, 0).sum(0), known.sum(0)
    return np.where(count > 0, total / count.clip(min=1), np.nan)


def _at(method: Method, key: str, step: float) -> tuple[float, Floats]:
    """The step of the evaluation nearest to `step`, and the mean over seeds of the nearest values, [k]."""
    nearest = []
    for run in method.counted:
        steps, values = run.series("test", key)
        i = int(np.abs(steps - step).argmin())
        nearest.append((steps[i], values[i]))
    return nearest[0][0], np.mean([values for _, values in nearest], axis=0)


def _estimate(method: Method, name: str) -> Floats:
    """The last estimate of the guidance in percent, averaged over the seeds that recorded one."""
    return _late([run for run in method.counted if len(run.series("guidance", name)[0])], "guidance", name)


def _late(runs: Sequence[Run], section: str, key: str) -> Floats:
    """The values of the last evaluation in percent, averaged over seeds."""
    return np.asarray(100 * np.mean([run.series(section, key)[1][-1] for run in runs], axis=0))


def _percent(counts: Sequence[int]) -> Floats:
    return 100 * np.array(counts) / sum(counts)
