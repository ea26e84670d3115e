import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer

from mnar.report import by_setting
from mnar.report.comparisons import bars_by_setting, label_distributions, sweeps
from mnar.run.reader import Run
from tests.report.drawn import tick_labels, words
from tests.report.made_up import run_with


def under(protocol: dict[str, object], run: Run) -> Run:
    run.config["protocol"] = protocol
    return run


def lines_of(axes: Axes) -> dict[str, list[list[float]]]:
    """Values and scores of the drawn lines, by name."""
    return {
        str(each.get_label()): np.asarray(each.lines[0].get_xydata()).tolist()
        for each in axes.containers
        if isinstance(each, ErrorbarContainer)
    }


OWN = {"name": "own", "num_labels": 40, "n1": 10, "gamma_u": 5.0}
REVERSED = {"name": "darp", "gamma_l": 100.0, "gamma_u": 100.0, "reverse": True}


@pytest.fixture(scope="module")
def two_protocols() -> list[Run]:
    return [
        under(protocol, run_with("fixmatch", guidance, accuracy=[accuracy + spread], seed=seed))
        for protocol, guidance, accuracy in (
            (OWN, "none", 0.5),
            (OWN, "prg", 0.7),
            (REVERSED, "none", 0.4),
            (REVERSED, "prg", 0.6),
        )
        for seed, spread in ((1, -0.1), (2, 0.1))
    ]


def test_bars_are_means_grouped_by_setting_with_whiskers_of_one_standard_deviation(
    two_protocols: list[Run],
) -> None:
    figure = bars_by_setting(by_setting(two_protocols))
    assert figure is not None
    left, right = figure.axes
    bars = [each for each in left.containers if isinstance(each, BarContainer)]
    assert [bar.get_label() for bar in bars] == ["fixmatch", "fixmatch + prg"] * 2
    np.testing.assert_allclose([bar.patches[0].get_width() for bar in bars], [50, 70, 40, 60])
    first = bars[0].errorbar
    assert first is not None
    (whisker,) = first.lines[2][0].get_segments()
    np.testing.assert_allclose(whisker[:, 0], 50 + np.array([-1, 1]) * 10 * 2**0.5)  # |a - b| / sqrt(2) for two values
    assert tick_labels(left.yaxis) == ["own n=40, N1=10, γ_u=5", "darp γ_l=100, γ_u=100\nreversed"]
    assert len(right.patches) == 4


def test_one_setting_or_one_method_has_no_figure_of_bars(two_protocols: list[Run]) -> None:
    assert bars_by_setting(by_setting(two_protocols[:4])) is None
    assert bars_by_setting(by_setting(two_protocols[:2] + two_protocols[4:6])) is None


def test_a_variant_that_only_one_setting_has_is_left_out_of_the_bars(two_protocols: list[Run]) -> None:
    variants = [under(OWN, run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha)) for alpha in (3.0, 10.0)]
    figure = bars_by_setting(by_setting([*two_protocols, *variants]))
    assert figure is not None
    assert len(figure.axes[0].patches) == 4


def test_bars_and_points_of_unfinished_runs_are_marked() -> None:
    runs = [
        under(protocol, run_with("fixmatch", "prg", accuracy=2 * [alpha / 20], alpha=alpha))
        for protocol in (OWN, REVERSED)
        for alpha in (0.1, 1.0, 10.0)
    ]
    runs[1].lines.pop()
    bars, lines = bars_by_setting(by_setting(runs)), sweeps(by_setting(runs))
    assert bars is not None
    assert [patch.get_alpha() is not None for patch in bars.axes[0].patches] == [run is runs[1] for run in runs]
    assert lines is not None
    for axes in lines.axes:
        hollow = [line.get_xydata().tolist() for line in axes.lines if line.get_markerfacecolor() == "white"]
        assert hollow == [[[1.0, 5.0]]]


def test_a_sweep_is_a_line_of_means_over_seeds_against_the_only_option_that_differs() -> None:
    runs = [
        run_with("fixmatch", "prg", accuracy=[alpha / 20 + spread], geometric_mean=[0.25], alpha=alpha, seed=seed)
        for alpha in (10.0, 0.1, 1.0)
        for seed, spread in ((1, 0.1), (2, 0.3))
    ]
    plain = run_with("fixmatch", "none", accuracy=[0.5])
    figure = sweeps(by_setting([*runs, plain]))
    assert figure is not None
    accuracy, geometric_mean = figure.axes
    (points,) = lines_of(accuracy).values()
    assert list(lines_of(accuracy)) == ["fixmatch + prg"]
    np.testing.assert_allclose(points, [[0.1, 20.5], [1, 25], [10, 70]])
    np.testing.assert_allclose(np.array(lines_of(geometric_mean)["fixmatch + prg"])[:, 1], 25)
    assert accuracy.get_xscale() == "log"
    assert accuracy.get_xlabel() == "α, guidance.alpha"
    assert tick_labels(accuracy.xaxis) == ["0.1", "1", "10"]


def test_methods_in_a_sweep_of_the_protocol_have_lines_in_their_own_colours() -> None:
    runs = [
        under({"name": "cadr", "gamma": gamma}, run_with("fixmatch", guidance, accuracy=[gamma / 200]))
        for gamma in (20.0, 50.0, 100.0)
        for guidance in ("none", "prg")
    ]
    figure = sweeps(by_setting(runs))
    assert figure is not None
    assert set(lines_of(figure.axes[0])) == {"fixmatch", "fixmatch + prg"}
    assert figure.axes[0].get_xlabel() == "γ, protocol.gamma"
    colours = {str(line.get_color()) for line in figure.axes[0].lines if line.get_marker() == "o"}
    assert len(colours) == 2


def test_two_sweeps_of_one_method_are_named_with_the_option_that_differs() -> None:
    runs = [
        run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha, steps=steps)
        for alpha in (0.1, 1.0, 3.0)
        for steps in (1, 2)
    ]
    figure = sweeps(by_setting(runs))
    assert figure is not None
    assert len(figure.axes) == 2, "two values are not enough for a sweep"
    assert list(lines_of(figure.axes[0])) == ["fixmatch + prg (steps=1)", "fixmatch + prg (steps=2)"]


def test_sweeps_of_one_method_on_two_own_data_sets_are_named_with_the_data_set() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha) for alpha in (0.1, 1.0, 3.0) for _ in range(2)]
    for i, run in enumerate(runs):
        run.config["dataset"]["name"], run.split["dataset"] = "own_data", ("birds", "survey")[i % 2]
    figure = sweeps(by_setting(runs))
    assert figure is not None
    assert list(lines_of(figure.axes[0])) == ["fixmatch + prg (dataset=birds)", "fixmatch + prg (dataset=survey)"]


def test_two_values_or_two_options_that_change_together_are_not_a_sweep() -> None:
    two = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha) for alpha in (1.0, 3.0)]
    together = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=x, steps=int(x)) for x in (1.0, 2.0, 3.0)]
    switched = [run_with("fixmatch", "prg", accuracy=[0.5], usage=usage) for usage in ("soft", "hard", "none")]
    for runs in (two, together, switched):
        assert sweeps(by_setting(runs)) is None


def test_label_distributions_are_counts_per_setting_with_the_class_of_most_labels_first() -> None:
    first, second = (
        under({"name": "cadr", "gamma": gamma}, run_with("fixmatch", "none", accuracy=[0.5])) for gamma in (20.0, 50.0)
    )
    first.split.update(labeled=[2, 40], unlabeled=[1500, 100])
    second.split.update(labeled=[7, 3], unlabeled=[10, 10])
    figure = label_distributions(by_setting([first, second]))
    heights = [[bar.get_height() for bar in axes.containers[0]] for axes in figure.axes]
    assert heights == [[40, 2], [100, 1500], [7, 3], [10, 10]]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["cadr γ=20: 42 labelled", "1,600 unlabelled", "cadr γ=50: 10 labelled", "20 unlabelled"]
    assert {"cat", "dog", "1,500"} <= words(figure)


def test_counts_have_ticks_at_whole_numbers_only() -> None:
    run = run_with("fixmatch", "none", accuracy=[0.5])
    run.split.update(labeled=[9, 4], unlabeled=[1, 1])
    for axes in label_distributions(by_setting([run])).axes:
        assert all(float(tick).is_integer() for tick in axes.get_yticks())


def test_a_pool_of_unknown_classes_has_no_panel_but_held_out_labels_have_one() -> None:
    run = under({"name": "as_labeled"}, run_with("fixmatch", "none", accuracy=[0.5]))
    run.split.update(unknown=100, dataset="survey")
    axes = label_distributions(by_setting([run])).axes
    assert [each.get_title(loc="left") for each in axes] == ["survey: 53 labelled", "72 held-out labels"]
    run.split["test_is_trained_on"] = True
    (only,) = label_distributions(by_setting([run])).axes
    assert only.get_title(loc="left") == "survey: 53 labelled"
