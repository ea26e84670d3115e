"""Figures of class-by-class matrices for the methods of one setting: confusions, and the matrices of guidances.

The classes are ordered from the most labels to the fewest, so that a bias towards popular classes is visible. A
function returns None if no run recorded the matrix.
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
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

MOST_CLASSES_IN_FIVE_COLUMNS = 12  # with more classes, the class names of a full-width figure would touch
CONFUSIONS = ("test_confusion", "pseudo_confusion")  # the matrices that every run records; guidances add others


def guidance_matrix_names(methods: Sequence[Method]) -> list[str]:
    """The names of all matrices that guidances recorded (`Guidance.matrices`), e.g. "transitions"."""
    lines = [line for method in methods for run in method.runs for line in run.lines]
    return list(dict.fromkeys(name for line in lines for name in line.get("matrices", {}) if name not in CONFUSIONS))


def has_guidance_matrix(method: Method, name: str) -> bool:
    return len(_guidance_matrix(method, name)[0]) > 0


def has_pseudo_label_confusion(method: Method) -> bool:
    return method.run.knows_the_pool and _last_of_all_seeds(method, "pseudo_confusion") is not None


def has_confusion(method: Method) -> bool:
    return _last_of_all_seeds(method, "test_confusion") is not None


def awaits_transitions(method: Method) -> bool:
    """Whether a run tracks transitions but has not recorded a matrix yet: only a few evaluations keep matrices."""
    is_tracked = "guidance/transitions" in method.run.lines[-1].get("train", {})
    return bool(method.progress) and is_tracked and not has_guidance_matrix(method, "transitions")


def awaits_pseudo_label_confusion(method: Method) -> bool:
    last = method.run.lines[-1]
    is_noted = "pseudo" in last and "selection" not in last  # a selection between generations has no matrix
    return bool(method.progress) and is_noted and method.run.knows_the_pool and not has_pseudo_label_confusion(method)


def awaits_confusion(method: Method) -> bool:
    return bool(method.progress) and not has_confusion(method)


@styled
def guidance_matrices(methods: Sequence[Method], name: str) -> Figure | None:
    """One matrix of the guidance at up to five steps, spread over one run of each method that recorded it."""
    recorded = [(method, *_guidance_matrix(method, name)) for method in methods if has_guidance_matrix(method, name)]
    if not recorded:
        return None
    runs = [method.run for method, _, _ in recorded]
    is_crowded = any(is_named(run) and run.num_classes > MOST_CLASSES_IN_FIVE_COLUMNS for run in runs)
    columns, height = (3, 3.9) if is_crowded else (5, 2.7)
    norm, ticks = _colour_norm([matrices for _, _, matrices in recorded])
    figure, strips = stacked(len(recorded), height=height + room_for_names(runs))
    for strip, (method, steps, matrices) in zip(strips, recorded, strict=True):
        run, shown = method.run, _spread_out(steps, columns)
        axes = strip.subplots(1, columns, sharey=True)
        for unused in axes[len(shown) :]:
            unused.set_visible(False)
        for panel, i in zip(axes, shown, strict=False):
            matrix = matrices[i][np.ix_(run.class_order, run.class_order)]
            image = heat_map(panel, matrix, cmap="Blues", norm=norm)
            class_ticks(panel.xaxis, class_names(run), upright=True)
            class_ticks(panel.yaxis, class_names(run))
            total = f"{matrix.sum():,.0f} {name}" if name == "transitions" else f"sum {matrix.sum():,.3g}"
            panel.set_title(f"step {steps[i]:,.0f}\n{total}", weight="normal", size=9)
            panel.set_xlabel("to class")
        axes[0].set_ylabel("from class" if is_named(run) else "from class (rank)")
        strip.suptitle(method.name, x=0, ha="left", size=10, weight="bold", color=method.colour)
        scale = strip.colorbar(image, ax=axes, ticks=ticks, format="%g", shrink=0.8)
        scale.set_label(name)
        scale.minorticks_off()
    return figure


def _colour_norm(matrices: Sequence[Floats]) -> tuple[Normalize, list[float] | None]:
    """A logarithmic colour scale for counts, which shrink by orders of magnitude; a linear one for small numbers.

    The scale begins at 0, or at the smallest value if that is negative.
    """
    from matplotlib.colors import Normalize, SymLogNorm

    lowest = min(0.0, *(float(np.nanmin(each)) for each in matrices))
    highest = max(0.0, *(float(np.nanmax(each)) for each in matrices))
    if highest <= 1:
        return Normalize(lowest, highest), None
    top = max(10, highest)
    ticks = [0, *(10**power for power in range(1 + int(np.log10(top))))] if lowest == 0 else None
    return SymLogNorm(1, vmin=lowest, vmax=top), ticks


@styled
def pseudo_label_confusion(methods: Sequence[Method]) -> Figure | None:
    """The pseudo-labels of the samples of each true class; only for runs that know the true classes of the pool."""
    return _confusion([method for method in methods if method.run.knows_the_pool], "pseudo_confusion", "pseudo-label")


@styled
def confusion_matrices(methods: Sequence[Method]) -> Figure | None:
    """The confusion on the test set at the last evaluation that recorded it."""
    return _confusion(methods, "test_confusion", "predicted class")


def _confusion(methods: Sequence[Method], key: str, given: str) -> Figure | None:
    """The sum over all seeds, each row in percent of its true class. A last column counts rejected pseudo-labels."""
    from matplotlib.colors import PowerNorm

    recorded = [(method, *last) for method in methods if (last := _last_of_all_seeds(method, key)) is not None]
    if not recorded:
        return None
    norm = PowerNorm(0.5, vmin=0, vmax=100)  # a square root makes small errors visible
    figure, axes = panels(len(recorded), columns=2, height=4.7)
    for panel, (method, counts, earlier) in zip(axes, recorded, strict=True):
        order, num_classes = method.run.class_order, method.run.num_classes
        shares = 100 * counts / counts.sum(1, keepdims=True).clip(min=1)
        shares = shares[order][:, [*order, *range(num_classes, counts.shape[1])]]
        # Square cells (aspect="equal") would leave the layout no room for titles.
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
    """The sum of every seed's last matrix, and the steps of these matrices unless they are the last evaluations."""
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


def _guidance_matrix(method: Method, name: str) -> tuple[Floats, Floats]:
    """Steps and matrices of the first run that recorded any, from the first matrix that is not zero."""
    for run in method.counted:
        steps, matrices = run.series("matrices", name)
        if matrices.any():
            is_filled = matrices.any(axis=(1, 2))
            return steps[is_filled], matrices[is_filled]
    return np.zeros(0), np.zeros(0)


def _spread_out(steps: Floats, most: int) -> list[int]:
    """The positions of at most `most` steps, evenly spread from the first to the last."""
    wanted = np.linspace(steps[0], steps[-1], most)
    return sorted({int(np.abs(steps - step).argmin()) for step in wanted})
