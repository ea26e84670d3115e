"""Figures that compare settings; None if there is nothing to compare."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnar.report.methods import SYMBOLS, Method, Setting, differing, differing_settings, distinguished
from mnar.report.style import (
    LINE_STYLES,
    PALETTE,
    class_names,
    class_ticks,
    classes_label,
    is_named,
    legend_above,
    panels,
    room_for_names,
    stacked,
    styled,
)
from mnar.report.tables import Spread, row
from mnar.run.reader import Run
from mnar.training.headline import Headline, headline_name
from mnar.training.metrics import headline_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = dict(zip(LINE_STYLES, (None, "////", "...."), strict=True))  # for methods past the end of the palette
NOT_RECORDED = Spread(np.nan, None)  # of older runs; matplotlib draws nothing for NaN
PALE = 0.45  # opacity for methods without a finished run
FEWEST_VALUES = 3  # values of an option; a line through two points says little
MOST_CLASSES_WITH_NUMBERS = 12  # above the bars of half a figure's width


@styled
def bars_by_setting(settings: Sequence[Setting]) -> Figure | None:
    """One group of bars per setting, one bar per method. Variants that only one setting has are left out."""
    shown = _without_variants(settings)
    if len(shown) < 2 or len({method.name for setting in shown for method in setting.methods}) < 2:
        return None
    num_bars = sum(len(setting.methods) for setting in shown)
    whisker: dict[str, Any] = {"error_kw": {"linewidth": 0.8}, "capsize": 2}
    scores = _panel_titles()
    figure, axes = panels(len(scores), columns=2, height=1.0 + 0.15 * (num_bars + len(shown)))
    for panel in axes[1:]:
        panel.sharey(axes[0])
    for panel, (key, title) in zip(axes, scores.items(), strict=True):
        places, middles = count(), []
        for setting in shown:
            taken = [next(places) for _ in setting.methods]
            middles.append(np.mean(taken))
            next(places)  # room between groups
            for place, method in zip(taken, setting.methods, strict=True):
                spread = row(method).headline.get(key, NOT_RECORDED)
                bar = panel.barh(place, 100 * spread.mean, 0.9, xerr=_percent_of(spread.sd), **whisker)
                bar.set_label(method.name)
                look = {"facecolor": method.colour, "hatch": HATCHES[method.line_style]}
                for patch in bar:
                    patch.set(edgecolor="white", linewidth=0, alpha=PALE if method.progress else None, **look)
        panel.set(title=title, xlabel="%", xlim=(0, 100))
        panel.set_yticks(middles, [textwrap.fill(setting.name, 26) for setting in shown])
        panel.tick_params(axis="y", length=0)
        panel.grid(visible=True, axis="x")
        panel.set_axisbelow(True)
    axes[0].invert_yaxis()
    for panel in axes[1::2]:
        panel.tick_params(axis="y", labelleft=False)
    legend_above(figure, axes[:1])
    return figure


@styled
def sweeps(settings: Sequence[Setting]) -> Figure | None:
    """Scores against each numeric option that has three values or more among runs that differ in nothing else."""
    found = {name: lines for name in _numeric_settings(settings) if (lines := _lines(settings, name))}
    if not found:
        return None
    scores = _panel_titles()
    figure, strips = stacked(len(found), height=3.3)
    for strip, (name, lines) in zip(strips, found.items(), strict=True):
        axes = strip.subplots(1, len(scores), squeeze=False)[0]
        for panel, (key, title) in zip(axes, scores.items(), strict=True):
            for line in lines:
                _errors(panel, line, key)
            option = name.rpartition(".")[2]
            panel.set(title=title, ylabel="%", xlabel=f"{SYMBOLS[option]}, {name}" if option in SYMBOLS else name)
            panel.grid(visible=True, axis="y")
            _ticks_at(panel, sorted({value for line in lines for value in line.values}))
        legend_above(strip, axes[:1])
    return figure


@styled
def label_distributions(settings: Sequence[Setting]) -> Figure:
    """Labelled and unlabelled samples per class, in two panels because their scales differ.

    The classes of the user's own pool are unknown, so the second panel has the held-out labels, if there are any.
    """
    runs = [setting.run for setting in settings]
    figure, axes = panels(2 * len(settings), columns=2, height=2.2 + room_for_names(runs))
    for setting, left, right in zip(settings, axes[::2], axes[1::2], strict=True):
        run = setting.run
        _counts(left, run, run.split["labeled"], "labelled", PALETTE[0])
        left.set_title(f"{setting.name}: {left.get_title(loc='left')}")
        if not run.knows_the_pool and run.is_tested_on_training_labels:
            right.remove()
        elif not run.knows_the_pool:
            _counts(right, run, run.split["test"], "held-out labels", PALETTE[2])
        else:
            _counts(right, run, run.split["unlabeled"], "unlabelled", PALETTE[2])
    return figure


def _panel_titles() -> dict[str, str]:
    """The headline figures that have a panel each, and the titles of these panels."""
    return {headline_name(metric.name): f"Test {metric.title}" for metric in headline_metrics()}


def _without_variants(settings: Sequence[Setting]) -> list[Setting]:
    """Settings without the variants of a method that only one setting has, such as a sweep of an option."""
    tried = Counter(method.name for setting in settings for method in setting.methods)
    kept = [
        Setting(name, [method for method in methods if method.name == method.run.label or tried[method.name] > 1])
        for name, methods in settings
    ]
    return [setting for setting in kept if setting.methods]


class Line(NamedTuple):
    """The scores of a method along the values of an option."""

    name: str
    values: list[float]
    headlines: list[Headline[Spread]]
    is_finished: list[bool]
    colour: str
    style: str


def _numeric_settings(settings: Sequence[Setting]) -> list[str]:
    """Numeric options that differ between the runs."""
    runs = [method.run for setting in settings for method in setting.methods]
    return [name for name in differing_settings(runs) if any(_is_number(run.method.get(name)) for run in runs)]


def _lines(settings: Sequence[Setting], name: str) -> list[Line]:
    """Groups of methods that differ in this option alone, ordered by its value."""
    along: list[tuple[dict[str, Any], dict[float, Method]]] = []
    for method in (method for setting in settings for method in setting.methods):
        everything = {**method.run.method, **method.run.setting}
        everything.pop("dataset.name", None)  # "dataset" already names the data set or the user's file
        value = everything.pop(name, None)
        if not _is_number(value):
            continue
        line = next((line for rest, line in along if rest == everything), None)
        if line is None:
            along.append((everything, {value: method}))
        else:
            line[value] = method
    lines = [(rest, dict(sorted(line.items()))) for rest, line in along if len(line) >= FEWEST_VALUES]
    drawn: list[Line] = []
    for rest, line in lines:
        label = _label(line)
        namesakes = [other for other, of_other in lines if _label(of_other) == label]
        differing_options = {each: rest.get(each) for each in differing(namesakes)}
        name, style = distinguished(label, differing_options), LINE_STYLES[namesakes.index(rest) % len(LINE_STYLES)]
        headlines = [row(method).headline for method in line.values()]
        is_finished = [not method.progress for method in line.values()]
        drawn.append(Line(name, list(line), headlines, is_finished, _colour(line.values()), style))
    return drawn


def _label(line: Mapping[float, Method]) -> str:
    return next(iter(line.values())).run.label


def _colour(variants: Iterable[Method]) -> str:
    """The colour of the variant with the shortest name, which has the default options."""
    return min(variants, key=lambda method: len(method.name)).colour


def _errors(axes: Axes, line: Line, key: str) -> None:
    spreads = [figures.get(key, NOT_RECORDED) for figures in line.headlines]
    means, deviations = [100 * spread.mean for spread in spreads], [_percent_of(spread.sd) for spread in spreads]
    look: dict[str, Any] = {"color": line.colour, "marker": "o", "markersize": 4}
    axes.errorbar(line.values, means, deviations, label=line.name, linestyle=line.style, capsize=2, **look)
    for value, mean, is_finished in zip(line.values, means, line.is_finished, strict=True):
        if not is_finished:
            axes.plot(value, mean, markerfacecolor="white", zorder=3, **look)


def _percent_of(deviation: float | None) -> float:
    return np.nan if deviation is None else 100 * deviation  # a single run has no deviation, so no whisker is drawn


def _ticks_at(axes: Axes, values: Sequence[float]) -> None:
    if values[0] > 0 and values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def _counts(axes: Axes, run: Run, counts: Sequence[int], kind: str, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    ordered = np.asarray(counts)[run.class_order]
    if is_named(run):
        bars = axes.bar(range(len(ordered)), ordered, 0.8, color=colour)
        if len(ordered) <= MOST_CLASSES_WITH_NUMBERS:
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    else:
        axes.stairs(ordered, np.arange(len(ordered) + 1) - 0.5, color=colour, fill=True)
    class_ticks(axes.xaxis, class_names(run), upright=True)
    axes.set(xlabel=classes_label(run, "class"), ylabel="samples", ylim=(0, 1.12 * max(1, ordered.max())))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(f"{ordered.sum():,} {kind}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
