import numpy as np

from mnar.report.matrices import confusion_matrices, pseudo_label_confusion, transition_matrices
from mnar.run.reader import Run
from tests.report.drawn import cells, methods_of, tick_labels
from tests.report.made_up import run_with


def with_matrices(guidance: str, name: str, *matrices: list[list[int]], seed: int = 1) -> Run:
    run = run_with("fixmatch", guidance, accuracy=[0.5] * len(matrices), seed=seed)
    for line, matrix in zip(run.lines, matrices, strict=True):
        line["matrices"] = {name: matrix}
    return run


def test_runs_without_matrices_have_no_figures_of_them() -> None:
    methods = methods_of([run_with("fixmatch", "prg", accuracy=[0.5])])
    assert transition_matrices(methods) is None
    assert confusion_matrices(methods) is None
    assert pseudo_label_confusion(methods) is None


def test_confusion_is_of_the_last_matrix_of_all_seeds_in_percent_of_the_true_class() -> None:
    seeds = [
        with_matrices("none", "test_confusion", [[0, 40], [40, 0]], last, seed=seed)
        for seed, last in enumerate(([[30, 10], [0, 40]], [[30, 10], [20, 20]]))
    ]
    figure = confusion_matrices(methods_of(seeds))
    assert figure is not None
    np.testing.assert_allclose(cells(figure.axes[0]), [[75, 25], [25, 75]])


def test_confusion_older_than_the_last_evaluation_has_its_step_beside_the_name() -> None:
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
    assert title() == "fixmatch", "the last evaluation, though not of all"
    del first.lines[-1]["matrices"]
    assert title() == "fixmatch, steps 10 to 20"
    del second.lines[-1]["matrices"]
    assert title() == "fixmatch, step 10"
    del second.lines[0]["matrices"]
    assert title() == "fixmatch, step 10"


def test_transitions_are_of_the_first_seed_that_has_any() -> None:
    runs = [with_matrices("prg", "transitions", [[0, most], [0, 0]], seed=seed) for seed, most in ((1, 0), (2, 4))]
    figure = transition_matrices(methods_of(runs))
    assert figure is not None
    np.testing.assert_allclose(cells(figure.axes[0]), [[0, 4], [0, 0]])


def test_confusion_of_pseudo_labels_ends_with_those_not_accepted_and_puts_rare_classes_last() -> None:
    run = with_matrices("prg", "pseudo_confusion", [[5, 3, 2], [1, 0, 9]])
    run.split["labeled"] = [2, 40]
    figure = pseudo_label_confusion(methods_of([run]))
    assert figure is not None
    np.testing.assert_allclose(cells(figure.axes[0]), [[0, 10, 90], [30, 50, 20]])
    assert tick_labels(figure.axes[0].xaxis) == ["dog", "cat", "–"]
    assert tick_labels(figure.axes[0].yaxis) == ["dog", "cat"]


def test_pseudo_labels_whose_truth_nobody_knows_are_left_out() -> None:
    known, unknown = (with_matrices(name, "pseudo_confusion", [[1, 0, 0], [0, 1, 0]]) for name in ("none", "prg"))
    unknown.split["unknown"] = 10
    assert pseudo_label_confusion(methods_of([unknown])) is None
    figure = pseudo_label_confusion(methods_of([known, unknown]))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.images] == ["fixmatch"]


def test_transitions_are_shown_at_five_times_from_the_first_that_happened_to_the_last() -> None:
    counts = (0, 8, 7, 6, 5, 4, 3, 2, 1)
    run = with_matrices("prg", "transitions", *([[0, count], [0, 0]] for count in counts))
    figure = transition_matrices(methods_of([run]))
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"step {step}\n{count} transitions" for step, count in ((20, 8), (40, 6), (50, 5), (70, 3), (90, 1))
    ]
    np.testing.assert_allclose(cells(panels[1]), [[0, 6], [0, 0]])


def test_transitions_of_a_learner_that_is_only_tracked_stand_above_those_of_prg_on_one_scale() -> None:
    runs = [with_matrices(name, "transitions", [[0, most], [0, 0]]) for name, most in (("prg", 50), ("tracking", 200))]
    figure = transition_matrices(methods_of(runs))
    assert figure is not None
    assert [strip.get_suptitle() for strip in figure.subfigs] == ["fixmatch + tracking", "fixmatch + prg"]
    limits = [axes.images[0].get_clim() for axes in figure.axes if axes.images]
    assert limits == [(0, 200), (0, 200)]
