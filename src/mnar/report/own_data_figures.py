"""Figures of the page about the user's own data: class shares, recalls, confidences and their reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.report.style import (
    FAINT,
    INK,
    MOST_NAMED_CLASSES,
    PALETTE,
    class_ticks,
    legend_above,
    panels,
    shortened,
    styled,
)
from mnar.run.reader import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_CONFIDENCE_BINS = 20
NUM_RELIABILITY_BINS = 10
MIN_IN_BIN = 5  # predictions; the share of right ones among fewer says nothing
ROOM_PER_CHARACTER = 0.07  # inches that a rotated class name takes below a panel


class Interval(NamedTuple):
    """An estimate between 0 and 1 with its 95 % interval; a difference lies between -1 and 1."""

    value: float
    low: float
    high: float


class Reliability(NamedTuple):
    """Predictions from cross-validation: each labelled sample was predicted by a model that did not see its label."""

    confidence: npt.ArrayLike  # [n] confidence of each prediction
    is_correct: npt.ArrayLike  # [n] whether the prediction is the label
    weight: npt.ArrayLike | None = None  # [n] e.g. importance weights that give the labels the pool's class mix


class Series(NamedTuple):
    """One bar per class in percent, [k], with the ends of its 95 % intervals, [k, 2]; NaN: unknown."""

    name: str
    percent: Floats
    colour: str
    ends: Floats | None = None


@styled
def class_share_bars(
    class_names: Sequence[str],
    num_labels: Sequence[int],
    pool_shares: Sequence[Interval | None],
    predicted_shares: Sequence[float] | None,
) -> Figure:
    """Shares of the labels, of the pool as estimated, and of the predictions for the pool, class by class."""
    series = [Series("labels", 100 * np.array(num_labels) / max(1, sum(num_labels)), FAINT)]
    if any(pool_shares):
        series.append(_estimates("estimated pool", pool_shares, PALETTE[1]))
    if predicted_shares is not None:
        series.append(Series("predictions for the pool", 100 * np.asarray(predicted_shares, float), PALETTE[0]))
    return _bars(class_names, num_labels, series, "% of samples", None)


@styled
def recall_bars(
    class_names: Sequence[str], num_labels: Sequence[int], recalls: Mapping[str, Sequence[Interval | None]]
) -> Figure:
    """The recall of each class in cross-validation, one bar per model."""
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(recalls))]
    series = [_estimates(name, values, colour) for (name, values), colour in zip(recalls.items(), colours, strict=True)]
    return _bars(class_names, num_labels, series, "recall, %", 103)


@styled
def confidence_figure(confidences: npt.ArrayLike | None, reliability: Reliability | None) -> Figure | None:
    """A histogram of the confidences of the predictions, and how often a prediction of such a confidence is right."""
    num_panels = (confidences is not None) + (reliability is not None)
    if num_panels == 0:
        return None
    figure, axes = panels(num_panels, columns=2, height=3.2)
    if confidences is not None:
        _histogram(axes[0], np.asarray(confidences, float))
    if reliability is not None:
        _reliability_curve(axes[-1], *binned(reliability))
    return figure


def binned(reliability: Reliability) -> tuple[Floats, Floats, Floats]:
    """Mean confidence, share of correct predictions and its 95 % interval [m, 2], in bins with enough predictions."""
    confidence = np.asarray(reliability.confidence, float)
    is_correct = np.asarray(reliability.is_correct, float)
    weight = np.ones_like(confidence) if reliability.weight is None else np.asarray(reliability.weight, float)
    bins = (confidence * NUM_RELIABILITY_BINS).astype(int).clip(0, NUM_RELIABILITY_BINS - 1)
    means, rights, ends = [], [], []
    for each in range(NUM_RELIABILITY_BINS):
        inside = bins == each
        total = weight[inside].sum()
        if inside.sum() < MIN_IN_BIN or total <= 0:
            continue
        right = float((weight * is_correct)[inside].sum() / total)
        means.append(float((weight * confidence)[inside].sum() / total))
        rights.append(right)
        ends.append(wilson_interval(right, total**2 / (weight[inside] ** 2).sum()))  # the effective sample size
    return np.array(means), np.array(rights), np.array(ends).reshape(-1, 2)


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share that `count` samples were observed for (Wilson's score interval)."""
    z = 1.96
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def _estimates(name: str, estimates: Sequence[Interval | None], colour: str) -> Series:
    values = 100 * np.array([each or (np.nan,) * 3 for each in estimates], float)
    return Series(name, values[:, 0], colour, values[:, 1:])


def _bars(
    class_names: Sequence[str], num_labels: Sequence[int], series: Sequence[Series], unit: str, top: float | None
) -> Figure:
    """Grouped bars from the class with the most labels to the class with the fewest; outlines for many classes."""
    order = np.argsort(-np.asarray(num_labels), kind="stable")
    names = [shortened(str(class_names[i])) for i in order]
    is_named = len(names) <= MOST_NAMED_CLASSES
    room = ROOM_PER_CHARACTER * max(map(len, names)) if is_named else 0.0
    figure, (panel,) = panels(1, columns=1, height=3.0 + room)
    width, places = 0.8 / len(series), np.arange(len(names))
    for i, each in enumerate(series):
        percent = each.percent[order]
        if is_named:
            middle = np.asarray(places + (i - (len(series) - 1) / 2) * width, np.float64)
            panel.bar(middle, percent, width, color=each.colour, label=each.name)
            if each.ends is not None:
                _whiskers(panel, middle, percent, each.ends[order])
        else:
            edges = np.arange(len(names) + 1) - 0.5
            panel.stairs(np.nan_to_num(percent), edges, color=each.colour, fill=i == 0, label=each.name)
    class_ticks(panel.xaxis, names, upright=True)
    panel.set(ylabel=unit, ylim=(0, top), xlabel="class" if is_named else "class (rank by number of labels)")
    panel.grid(visible=True, axis="y")
    panel.set_axisbelow(True)
    legend_above(figure, [panel])
    return figure


def _whiskers(axes: Axes, middle: Floats, percent: Floats, ends: Floats) -> None:
    known = ~np.isnan(ends).any(1)
    below, above = (percent - ends[:, 0]).clip(min=0), (ends[:, 1] - percent).clip(min=0)
    look: dict[str, Any] = {"fmt": "none", "ecolor": INK, "elinewidth": 1, "capsize": 2}
    axes.errorbar(middle[known], percent[known], [below[known], above[known]], **look)


def _histogram(axes: Axes, confidences: Floats) -> None:
    edges = np.linspace(0, 1, NUM_CONFIDENCE_BINS + 1)
    shares = 100 * np.histogram(confidences.clip(0, 1), edges)[0] / max(1, len(confidences))
    axes.bar(100 * edges[:-1], shares, 100 / NUM_CONFIDENCE_BINS, align="edge", color=PALETTE[0], edgecolor="white")
    mean = f", mean {100 * confidences.mean():.0f} %" if len(confidences) else ""
    axes.set(
        title=f"Confidence of the predictions{mean}", xlabel="confidence, %", ylabel="% of the pool", xlim=(0, 100)
    )
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)


def _reliability_curve(axes: Axes, confidence: Floats, right: Floats, ends: Floats) -> None:
    axes.plot([0, 100], [0, 100], color=FAINT, linewidth=1)
    spread = np.abs(ends.T - right) if len(right) else np.zeros((2, 0))
    look: dict[str, Any] = {"color": PALETTE[1], "marker": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}
    axes.errorbar(100 * confidence, 100 * right, 100 * spread, **look)
    axes.set(title="How often a prediction is right", xlabel="confidence, %", ylabel="% right")
    axes.set(xlim=(0, 100), ylim=(0, 103))
    axes.grid(visible=True)
    axes.set_axisbelow(True)
