import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from mnar.report.curves import learning_curves, pseudo_label_health
from mnar.report.style import svg
from mnar.run.reader import Run
from tests.report.drawn import methods_of
from tests.report.made_up import run_with


def dotted(lines: list[Line2D]) -> list[Line2D]:
    return [line for line in lines if line.get_linestyle() == ":"]


@pytest.mark.parametrize(
    ("iterations", "mean"),
    [(40, [[10, 20], [20, 40]]), (30, [[10, 10], [20, 30], [30, 50]])],
    ids=["no seed is finished", "one seed is finished"],
)
def test_the_thick_curve_is_the_mean_at_the_steps_that_all_counted_seeds_have(
    iterations: int, mean: list[list[float]]
) -> None:
    long = run_with("fixmatch", "none", accuracy=[0.1, 0.3, 0.5], seed=1)
    short = run_with("fixmatch", "none", accuracy=[0.3, 0.5], seed=2)
    for run in (long, short):
        run.config["train"]["iterations"] = iterations
    *thin, thick = learning_curves(methods_of([long, short])).axes[0].lines
    assert len(thin) == 2
    np.testing.assert_allclose(np.asarray(thick.get_xydata()), mean)


@pytest.mark.parametrize("plain", ["none", "tracking"])
def test_a_dotted_line_marks_the_final_value_of_a_learner_without_guidance(plain: str) -> None:
    runs = [
        run_with("fixmatch", plain, accuracy=[0.2, last], geometric_mean=[0.1, 0.3], seed=seed)
        for seed, last in ((1, 0.5), (2, 0.7))
    ]
    guided = run_with("fixmatch", "prg", accuracy=[0.2, 0.9])
    left, right = learning_curves(methods_of([*runs, guided])).axes
    (accuracy,), (geometric_mean,) = dotted(list(left.lines)), dotted(list(right.lines))
    np.testing.assert_allclose(np.asarray(accuracy.get_ydata(), dtype=float), 60)
    np.testing.assert_allclose(np.asarray(geometric_mean.get_ydata(), dtype=float), 30)
    (curve,) = [line for line in left.lines if line.get_label() == runs[0].label]
    assert to_hex(accuracy.get_color()) == to_hex(curve.get_color())


def test_the_dotted_line_is_the_mean_of_finished_seeds_only() -> None:
    finished, under_way = (
        run_with("fixmatch", "none", accuracy=[0.2, last], seed=seed) for seed, last in ((1, 0.5), (2, 0.7))
    )
    guided = run_with("fixmatch", "prg", accuracy=[0.2, 0.9])
    under_way.lines.pop()
    left, _ = learning_curves(methods_of([finished, under_way, guided])).axes
    (accuracy,) = dotted(list(left.lines))
    np.testing.assert_allclose(np.asarray(accuracy.get_ydata(), dtype=float), 50)
    finished.lines.pop()
    left, right = learning_curves(methods_of([finished, under_way, guided])).axes
    assert dotted([*left.lines, *right.lines]) == []


def test_there_is_no_dotted_line_without_a_guided_run_of_the_same_learner() -> None:
    runs = [run_with(*method, accuracy=[0.5]) for method in (("supervised", "none"), ("fixmatch", "prg"))]
    assert dotted(list(learning_curves(methods_of(runs)).axes[0].lines)) == []


def test_pseudo_label_health_has_a_panel_per_recorded_value_and_is_none_without_any() -> None:
    run = run_with("fixmatch", "prg", accuracy=[0.5])
    assert pseudo_label_health(methods_of([run])) is None
    run.lines[0]["train"] = {"mask_rate": 0.25}
    figure = pseudo_label_health(methods_of([run]))
    assert figure is not None
    (axes,) = figure.axes
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), [[10, 25]])


def test_pseudo_label_health_is_that_of_the_seeds_that_recorded_it() -> None:
    with_it, without = (run_with("fixmatch", "none", accuracy=[0.5], seed=seed) for seed in (1, 2))
    with_it.lines[0]["train"] = {"mask_rate": 0.25}
    figure = pseudo_label_health(methods_of([with_it, without]))
    assert figure is not None
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[-1].get_xydata()), [[10, 25]])


def test_a_figure_has_the_same_bytes_every_time() -> None:
    runs: list[Run] = [run_with("fixmatch", name, accuracy=[0.5, 0.6]) for name in ("none", "prg")]
    assert svg(learning_curves(methods_of(runs))) == svg(learning_curves(methods_of(runs)))
