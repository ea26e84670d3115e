"""Figures of class-by-class matrices, from the methods of one setting; None where no run recorded any.

Classes stand from the most labels to the fewest, so that a bias has a direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mnar.report.methods import Method, named_steps
from mnar.report.style import (
    INK,
    class_names,
    class_ticks,
    classes_label,
    colour_scale,
    heat_map,
    is_named,
    numbers,
    panels,
    room_for_names,
    stacked,
    styled,
)
from mnar.run.reader import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES_IN_FIVE_COLUMNS = 12  # of a full-width figure; more names would touch each other


def has_transitions(method: Method) -> bool:
    return len(_transitions(method)[0]) > 0


def has_pseudo_label_confusion(method: Method) -> bool:
    return method.run.knows_the_pool and _last_of_all_seeds(method, "pseudo_confusion") is not None


def has_confusion(method: Method) -> bool:
    return _last_of_all_seeds(method, "test_confusion") is not None


def awaits_transitions(method: Method) -> bool:
    """Only a few evaluations of a run keep its matrices: of one under way, the first may be still to come."""
    is_tracked = "guidance/transitions" in method.run.lines[-1].get("train", {})
    return bool(method.progress) and is_tracked and not has_transitions(method)


def awaits_pseudo_label_confusion(method: Method) -> bool:
    last = method.run.lines[-1]
    is_noted = "pseudo" in last and "selection" not in last  # who was selected has no matrix
    return bool(method.progress) and is_noted and method.run.knows_the_pool and not has_pseudo_label_confusion(method)


def awaits_confusion(method: Method) -> bool:
    return bool(method.progress) and not has_confusion(method)


@styled
def transition_matrices(methods: Sequence[Method]) -> Figure | None:
    """C at up to five times, evenly spread over one run of each method that tracks it."""
    from matplotlib.colors import SymLogNorm

    tracked = [(method, *_transitions(method)) for method in methods if has_transitions(method)]
    if not tracked:
        return None
    runs = [method.run for method, _, _ in tracked]
    is_crowded = any(is_named(run) and run.num_classes > MOST_CLASSES_IN_FIVE_COLUMNS for run in runs)
    columns, height = (3, 3.9) if is_crowded else (5, 2.7)
    # C shrinks by orders of magnitude as training settles: a logarithm shows both ends on one scale.
    most = max(10, *(matrices.max() for _, _, matrices in tracked))
    norm = SymLogNorm(1, vmin=0, vmax=most)
    figure, strips = stacked(len(tracked), height=height + room_for_names(runs))
    for strip, (method, steps, matrices) in zip(strips, tracked, strict=True):
        run, shown = method.run, _spread_out(steps, columns)
        axes = strip.subplots(1, columns, sharey=True)
        for unused in axes[len(shown) :]:
            unused.set_visible(False)
        for panel, i in zip(axes, shown, strict=False):
            matrix = matrices[i][np.ix_(run.class_order, run.class_order)]
            image = heat_map(panel, matrix, cmap="Blues", norm=norm)
            class_ticks(panel.xaxis, class_names(run), upright=True)
            class_ticks(panel.yaxis, class_names(run))
            panel.set_title(f"step {steps[i]:,.0f}\n{matrix.sum():,.0f} transitions", weight="normal", size=9)
            panel.set_xlabel("to class")
        axes[0].set_ylabel("from class" if is_named(run) else "from class (rank)")
        strip.suptitle(method.name, x=0, ha="left", size=10, weight="bold", color=method.colour)
        powers = range(1 + int(np.log10(most)))
        scale = strip.colorbar(image, ax=axes, ticks=[0, *(10**power for power in powers)], format="%d", shrink=0.8)
        scale.set_label("in the window")
        scale.minorticks_off()
    return figure


@styled
def pseudo_label_confusion(methods: Sequence[Method]) -> Figure | None:
    """What samples of each true class got as a pseudo-label of late. Of people's own data nobody knows it."""
    return _confusion([method for method in methods if method.run.knows_the_pool], "pseudo_confusion", "pseudo-label")


@styled
def confusion_matrices(methods: Sequence[Method]) -> Figure | None:
    """Test confusion of late."""
    return _confusion(methods, "test_confusion", "predicted class")


def _confusion(methods: Sequence[Method], key: str, given: str) -> Figure | None:
    """All seeds together, each row in percent of its true class; a column beyond the classes stands last."""
    from matplotlib.colors import PowerNorm

    recorded = [(method, *last) for method in methods if (last := _last_of_all_seeds(method, key)) is not None]
    if not recorded:
        return None
    norm = PowerNorm(0.5, vmin=0, vmax=100)  # the root, or the errors of 100 classes would be too thin to see
    figure, axes = panels(len(recorded), columns=2, height=4.7)
    for panel, (method, counts, earlier) in zip(axes, recorded, strict=True):
        order, num_classes = method.run.class_order, method.run.num_classes
        shares = 100 * counts / counts.sum(1, keepdims=True).clip(min=1)
        shares = shares[order][:, [*order, *range(num_classes, counts.shape[1])]]
        # Cells are about square as it is; forced to be, they would leave the layout no room for titles.
        image = heat_map(panel, shares, cmap="Blues", norm=norm, aspect="auto")
        if is_named(method.run):
            numbers(panel, shares, size=min(8.0, 90 / num_classes), dark_from=35, least=0.51)  # no zeros
        has_rejected = counts.shape[1] > num_classes
        class_ticks(panel.xaxis, class_names(method.run), upright=True, beyond="–" if has_rejected else None)
        class_ticks(panel.yaxis, class_names(method.run))
        if has_rejected:
            panel.axvline(num_classes - 0.5, color=INK, linewidth=0.8)
        panel.set(xlabel=classes_label(method.run, given), ylabel=classes_label(method.run, "true class"))
        panel.set_title(f"{method.name}, {earlier}" if earlier else method.name, color=method.colour)
    colour_scale(figure, axes, image, "% of the true class")
    return figure


def _last_of_all_seeds(method: Method, key: str) -> tuple[Floats, str] | None:
    """The sum of the last matrix of each, and the steps they are of where these are not the last evaluations."""
    last = [
        (int(steps[-1]), matrices[-1])
        for steps, matrices in (run.series("matrices", key) for run in method.counted)
        if len(steps)
    ]
    if not last:
        return None
    steps = [step for step, _ in last]
    is_latest = steps == [run.step for run in method.counted]
    return np.sum([matrix for _, matrix in last], axis=0), "" if is_latest else named_steps(steps)


def _transitions(method: Method) -> tuple[Floats, Floats]:
    """Steps and matrices C of the first run that has any, from the first in which a prediction has moved."""
    for run in method.counted:
        steps, matrices = run.series("matrices", "transitions")
        if matrices.any():
            moved = matrices.any(axis=(1, 2))
            return steps[moved], matrices[moved]
    return np.zeros(0), np.zeros(0)


def _spread_out(steps: Floats, most: int) -> list[int]:
    """At most so many of them, from the first to the last."""
    wanted = np.linspace(steps[0], steps[-1], most)
    return sorted({int(np.abs(steps - step).argmin()) for step in wanted})
