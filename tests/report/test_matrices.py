from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from mnar.report.matrices import (
    confusion_matrices,
    guidance_matrices,
    guidance_matrix_names,
    has_guidance_matrix,
    pseudo_label_confusion,
)
from mnar.report.style import svg
from mnar.run.reader import Run
from tests.report.drawn import cells, methods_of, tick_labels, words
from tests.report.made_up import run_with


def with_matrices(guidance: str, name: str, *matrices: Sequence[Sequence[float]], seed: int = 1) -> Run:
    """A run whose evaluations recorded these matrices."""
    run = run_with("fixmatch", guidance, accuracy=[0.5] * len(matrices), seed=seed)
    for line, matrix in zip(run.lines, matrices, strict=True):
        line["matrices"] = {name: matrix}
    return run


def drawn_matrices(runs: list[Run], name: str) -> Figure:
    figure = guidance_matrices(methods_of(runs), name)
    assert figure is not None
    return figure


def test_runs_without_matrices_have_no_figures_of_them() -> None:
    methods = methods_of([run_with("fixmatch", "prg", accuracy=[0.5])])
    assert guidance_matrix_names(methods) == []
    assert guidance_matrices(methods, "transitions") is None
    assert confusion_matrices(methods) is None
    assert pseudo_label_confusion(methods) is None


def test_the_confusion_sums_the_last_matrix_of_every_seed_in_percent_of_the_true_class() -> None:
    seeds = [
        with_matrices("none", "test_confusion", [[0, 40], [40, 0]], last, seed=seed)
        for seed, last in enumerate(([[30, 10], [0, 40]], [[30, 10], [20, 20]]))
    ]
    figure = confusion_matrices(methods_of(seeds))
    assert figure is not None
    np.testing.assert_allclose(cells(figure.axes[0]), [[75, 25], [25, 75]])


def test_a_confusion_from_before_the_last_evaluation_has_its_step_beside_the_name() -> None:
    first, second = (
        with_matrices("none", "test_confusion", [[9, 1], [1, 9]], [[8, 2], [2, 8]], seed=seed) for seed in (1, 2)
    )

    def title() -> str:
        figure = confusion_matrices(methods_of([first, second]))
        assert figure is not None
        return figure.axes[0].get_title(loc="left")

    assert title() == "fixmatch"
    for run in (first, second):
        run.config["train"]["iterations"] = 3000
    assert title() == "fixmatch", "the last evaluation of an unfinished run"
    del first.lines[-1]["matrices"]
    assert title() == "fixmatch, steps 10 to 20"
    del second.lines[-1]["matrices"]
    assert title() == "fixmatch, step 10"
    del second.lines[0]["matrices"]
    assert title() == "fixmatch, step 10"


def test_transitions_are_those_of_the_first_seed_that_has_any() -> None:
    runs = [with_matrices("prg", "transitions", [[0, most], [0, 0]], seed=seed) for seed, most in ((1, 0), (2, 4))]
    figure = drawn_matrices(runs, "transitions")
    np.testing.assert_allclose(cells(figure.axes[0]), [[0, 4], [0, 0]])


def test_the_confusion_of_pseudo_labels_has_rejected_labels_and_rare_classes_last() -> None:
    run = with_matrices("prg", "pseudo_confusion", [[5, 3, 2], [1, 0, 9]])
    run.split["labeled"] = [2, 40]
    figure = pseudo_label_confusion(methods_of([run]))
    assert figure is not None
    np.testing.assert_allclose(cells(figure.axes[0]), [[0, 10, 90], [30, 50, 20]])
    assert tick_labels(figure.axes[0].xaxis) == ["dog", "cat", "–"]
    assert tick_labels(figure.axes[0].yaxis) == ["dog", "cat"]


def test_the_confusion_of_pseudo_labels_leaves_out_runs_with_a_pool_of_unknown_classes() -> None:
    known, unknown = (with_matrices(name, "pseudo_confusion", [[1, 0, 0], [0, 1, 0]]) for name in ("none", "prg"))
    unknown.split["unknown"] = 10
    assert pseudo_label_confusion(methods_of([unknown])) is None
    figure = pseudo_label_confusion(methods_of([known, unknown]))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.images] == ["fixmatch"]


def test_transitions_are_drawn_at_five_steps_from_the_first_matrix_that_is_not_zero_to_the_last() -> None:
    counts = (0, 8, 7, 6, 5, 4, 3, 2, 1)
    run = with_matrices("prg", "transitions", *([[0, count], [0, 0]] for count in counts))
    figure = drawn_matrices([run], "transitions")
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"step {step}\n{count} transitions" for step, count in ((20, 8), (40, 6), (50, 5), (70, 3), (90, 1))
    ]
    np.testing.assert_allclose(cells(panels[1]), [[0, 6], [0, 0]])


def test_transitions_of_a_tracked_learner_are_above_those_of_prg_on_the_same_scale() -> None:
    runs = [with_matrices(name, "transitions", [[0, most], [0, 0]]) for name, most in (("prg", 50), ("tracking", 200))]
    figure = drawn_matrices(runs, "transitions")
    assert [strip.get_suptitle() for strip in figure.subfigs] == ["fixmatch + tracking", "fixmatch + prg"]
    limits = [axes.images[0].get_clim() for axes in figure.axes if axes.images]
    assert limits == [(0, 200), (0, 200)]


def test_every_matrix_of_a_guidance_is_drawn_with_classes_ordered_by_labels() -> None:
    run = with_matrices("prg", "affinity", [[0.5, 0.25], [0.125, 0.0]])
    run.lines[0]["matrices"] |= {"switches": [[0, 3], [40, 0]], "test_confusion": [[1, 0], [0, 1]]}
    run.split["labeled"] = [2, 40]
    methods = methods_of([run])
    assert guidance_matrix_names(methods) == ["affinity", "switches"], "the confusion has its own figure"
    for name, expected in (("affinity", [[0, 0.125], [0.25, 0.5]]), ("switches", [[0, 40], [3, 0]])):
        assert has_guidance_matrix(methods[0], name)
        figure = drawn_matrices([run], name)
        panel, *_ = (axes for axes in figure.axes if axes.images)
        np.testing.assert_allclose(cells(panel), expected)
        assert tick_labels(panel.xaxis) == tick_labels(panel.yaxis) == ["dog", "cat"]
        assert panel.get_title(loc="left") == f"step 10\nsum {np.sum(expected):.3g}"
        assert name in words(figure), "the label of the colour scale"


@pytest.mark.parametrize(
    ("matrix", "limits", "is_logarithmic"),
    [
        ([[0.5, 0.25], [0.0, 0.125]], (0, 0.5), False),
        ([[0, 3], [2, 0]], (0, 10), True),
        ([[0, 300], [2, 0]], (0, 300), True),
        ([[0.5, -0.25], [0.0, -1.0]], (-1, 0.5), False),
        ([[-0.5, -0.25], [0.0, -1.0]], (-1, 0), False),
        ([[30.0, -20.0], [0.0, -1.0]], (-20, 30), True),
    ],
)
def test_the_colour_scale_is_linear_for_shares_and_logarithmic_for_counts_and_covers_negative_values(
    matrix: list[list[float]], limits: tuple[float, float], is_logarithmic: bool
) -> None:
    figure = drawn_matrices([with_matrices("prg", "weights", matrix)], "weights")
    svg(figure)  # draws the ticks of the colour scale, too
    (image,) = (image for axes in figure.axes for image in axes.images)
    assert image.get_clim() == limits
    assert isinstance(image.norm, SymLogNorm) == is_logarithmic
