"""Figures across settings; None where there is nothing to compare."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnar.report.methods import SYMBOLS, Method, Setting, differing, differing_settings, told_apart
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
from mnar.training.evaluation import Headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORES = {"accuracy_median_last_20": "Test accuracy", "geometric_mean": "Geometric mean of recalls"}
HATCHES = dict(zip(LINE_STYLES, (None, "////", "...."), strict=True))  # for those past the end of the palette
PALE = 0.45  # for methods none of whose runs is finished
FEWEST_VALUES = 3  # of a setting; through two points any line goes
MOST_CLASSES_WITH_NUMBERS = 12  # above the bars of half a figure's width


@styled
def bars_by_setting(settings: Sequence[Setting]) -> Figure | None:
    """A group of bars a setting, a bar a method; a variant tried in one setting alone is left out."""
    shown = _without_variants(settings)
    if len(shown) < 2 or len({method.name for setting in shown for method in setting.methods}) < 2:
        return None
    num_bars = sum(len(setting.methods) for setting in shown)
    whisker: dict[str, Any] = {"error_kw": {"linewidth": 0.8}, "capsize": 2}
    figure, axes = panels(2, columns=2, height=1.0 + 0.15 * (num_bars + len(shown)))
    axes[1].sharey(axes[0])
    for panel, (key, title) in zip(axes, SCORES.items(), strict=True):
        places, middles = count(), []
        for setting in shown:
            taken = [next(places) for _ in setting.methods]
            middles.append(np.mean(taken))
            next(places)  # room between groups
            for place, method in zip(taken, setting.methods, strict=True):
                spread = getattr(row(method).headline, key)
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
    axes[1].tick_params(axis="y", labelleft=False)
    legend_above(figure, axes[:1])
    return figure


@styled
def sweeps(settings: Sequence[Setting]) -> Figure | None:
    """Scores against each numeric setting of which runs that differ in nothing else have three values or more."""
    found = {name: lines for name in _numeric_settings(settings) if (lines := _lines(settings, name))}
    if not found:
        return None
    figure, strips = stacked(len(found), height=3.3)
    for strip, (name, lines) in zip(strips, found.items(), strict=True):
        axes = strip.subplots(1, 2)
        for panel, (key, title) in zip(axes, SCORES.items(), strict=True):
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
    """Samples of each class, labelled and unlabelled: two panels, for their scales are far apart."""
    runs = [setting.run for setting in settings]
    figure, axes = panels(2 * len(settings), columns=2, height=2.2 + room_for_names(runs))
    for setting, left, right in zip(settings, axes[::2], axes[1::2], strict=True):
        run = setting.run
        _counts(left, run, run.split["labeled"], "labelled", PALETTE[0])
        left.set_title(f"{setting.name}: {left.get_title(loc='left')}")
        if not run.knows_the_pool:
            right.remove()  # of own data nobody knows it
        else:
            _counts(right, run, run.split["unlabeled"], "unlabelled", PALETTE[2])
    return figure


def _without_variants(settings: Sequence[Setting]) -> list[Setting]:
    """Without methods of one setting alone that have namesakes, such as a sweep of one of their options."""
    tried = Counter(method.name for setting in settings for method in setting.methods)
    kept = [
        Setting(name, [method for method in methods if method.name == method.run.label or tried[method.name] > 1])
        for name, methods in settings
    ]
    return [setting for setting in kept if setting.methods]


class Line(NamedTuple):
    """A method's scores along a setting."""

    name: str
    values: list[float]
    headlines: list[Headline[Spread]]
    is_finished: list[bool]
    colour: str
    style: str


def _numeric_settings(settings: Sequence[Setting]) -> list[str]:
    """Those that differ at all."""
    runs = [method.run for setting in settings for method in setting.methods]
    return [name for name in differing_settings(runs) if any(_is_number(run.method.get(name)) for run in runs)]


def _lines(settings: Sequence[Setting], name: str) -> list[Line]:
    """Methods that differ in this setting alone, by its value."""
    along: list[tuple[dict[str, Any], dict[float, Method]]] = []
    for method in (method for setting in settings for method in setting.methods):
        everything = {**method.run.method, **method.run.setting}
        everything.pop("dataset.name", None)  # "dataset" is that, or which of people's own
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
        told_by = {each: rest.get(each) for each in differing(namesakes)}
        name, style = told_apart(label, told_by), LINE_STYLES[namesakes.index(rest) % len(LINE_STYLES)]
        headlines = [row(method).headline for method in line.values()]
        is_finished = [not method.progress for method in line.values()]
        drawn.append(Line(name, list(line), headlines, is_finished, _colour(line.values()), style))
    return drawn


def _label(line: Mapping[float, Method]) -> str:
    return next(iter(line.values())).run.label


def _colour(variants: Iterable[Method]) -> str:
    """That of the one without a further name, if it is among them."""
    return min(variants, key=lambda method: len(method.name)).colour


def _errors(axes: Axes, line: Line, key: str) -> None:
    spreads = [getattr(each, key) for each in line.headlines]
    means, deviations = [100 * spread.mean for spread in spreads], [_percent_of(spread.sd) for spread in spreads]
    look: dict[str, Any] = {"color": line.colour, "marker": "o", "markersize": 4}
    axes.errorbar(line.values, means, deviations, label=line.name, linestyle=line.style, capsize=2, **look)
    for value, mean, is_finished in zip(line.values, means, line.is_finished, strict=True):
        if not is_finished:
            axes.plot(value, mean, markerfacecolor="white", zorder=3, **look)


def _percent_of(deviation: float | None) -> float:
    return np.nan if deviation is None else 100 * deviation  # of a single run there is none, and no whisker


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
