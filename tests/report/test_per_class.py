import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.text import Text

from mnar.report.curves import learning_curves
from mnar.report.per_class import (
    class_shares,
    estimate_names,
    guidance_estimates,
    has_estimate,
    precision_and_recall,
    pseudo_label_errors,
    recalls,
)
from mnar.run.reader import Run, read_run
from tests.report.drawn import cells, methods_of, tick_labels, words
from tests.report.made_up import METHODS, run_with, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [read_run(write_run(folder / f"{i}", *method, num_evaluations=6)) for i, method in enumerate(METHODS)]


def test_supervised_runs_have_no_figures_of_pseudo_labels(runs: list[Run]) -> None:
    supervised = methods_of(runs[:1])
    assert pseudo_label_errors(supervised) is None
    assert words(class_shares(supervised)) >= {"labels", "test predictions", "truth"}
    assert "pseudo-labels" not in words(class_shares(supervised))


def bar_names(axes: Axes) -> list[str]:
    return [str(bars.get_label()) for bars in axes.containers]


@pytest.mark.filterwarnings("error")
def test_own_data_have_no_bar_or_line_that_is_called_the_truth(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", class_names=("cat", "dog"), num_evaluations=2))
    run.split.update(unlabeled=[30, 10], unknown=0)
    (axes,) = class_shares(methods_of([run])).axes
    assert bar_names(axes) == ["labels", "pseudo-labels", "test predictions"]
    assert len(axes.collections) == 2, "true shares of the pool and of the test set"
    run.split.update(unlabeled=[0, 0], unknown=40)
    (axes,) = class_shares(methods_of([run])).axes
    assert bar_names(axes) == ["labels", "pseudo-labels", "predictions for held-out labels"]
    run.split["test_is_trained_on"] = True
    run.lines[-1]["guidance"] = {"pool_share": [0.25, 0.75]}
    (axes,) = class_shares(methods_of([run])).axes
    assert bar_names(axes) == ["labels", "pseudo-labels", "estimated pool", "predictions for training labels"]
    assert [bar.get_height() for bar in axes.containers[2]] == [25, 75]
    assert len(axes.collections) == 0
    assert "truth" not in words(class_shares(methods_of([run])))


def test_a_class_without_test_samples_has_no_precision_and_no_recall_in_the_figures() -> None:
    run = run_with("fixmatch", "prg", accuracy=[0.5], recall=(0.8, 0.0))
    run.lines[0]["test"]["precision"] = [0.7, 0.0]
    run.split.update(test=[10, 0], unknown=40)
    figure = precision_and_recall(methods_of([run]))
    assert figure is not None
    np.testing.assert_allclose(cells(figure.axes[0]), [[70] * 3 + [80] * 3, [np.nan] * 6])
    assert "–" in words(figure)
    bars = recalls(methods_of([run]))
    assert bars is not None
    np.testing.assert_allclose(heights(bars.axes[0]), [80, np.nan])
    assert tick_labels(bars.axes[0].xaxis) == ["cat (10)", "dog –"]


def test_recalls_of_a_run_and_of_its_baseline_are_side_by_side_for_own_data_only() -> None:
    run = run_with("fixmatch", "prg", accuracy=[0.5, 0.5], recall=(0.8, 0.4))
    baseline = run_with("supervised", "none", accuracy=[0.5, 0.5], recall=(0.9, 0.1))
    assert recalls(methods_of([run, baseline])) is None, "a benchmark"
    for each in (run, baseline):
        each.split["unknown"] = 40
    figure = recalls(methods_of([run, baseline]))
    assert figure is not None
    assert bar_names(figure.axes[0]) == ["supervised", "fixmatch + prg"]
    np.testing.assert_allclose(heights(figure.axes[0]), [90, 10, 80, 40])


def test_class_names_are_drawn_without_interpreting_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", class_names=("<b>", "$5$", "a&b"), num_evaluations=2)
    assert {"<b>", "$5$", "a&b"} <= words(class_shares(methods_of([read_run(folder)])))


def test_methods_keep_their_colour_in_a_figure_without_some_methods(runs: list[Run]) -> None:
    lines = learning_curves(methods_of(runs)).axes[0].lines
    colour = {line.get_label(): to_hex(line.get_color()) for line in lines}
    errors = pseudo_label_errors(methods_of(runs))  # without the supervised run
    assert errors is not None
    titles = [text for axes in errors.axes for text in axes.findobj(Text) if text.get_text() in colour]
    assert [text.get_text() for text in titles] == ["fixmatch", "fixmatch + prg", "fixmatch + prg_last"]
    assert [to_hex(text.get_color()) for text in titles] == [colour[text.get_text()] for text in titles]


def test_pseudo_label_errors_have_rare_classes_last_and_average_the_seeds_that_have_a_value(tmp_path: Path) -> None:
    recorded = []
    for seed, errors in ((1, [[0.5, 0.2], [None, 0.0]]), (2, [[None, 0.4], [None, 0.0]])):
        folder = write_run(tmp_path / f"{seed}", seed=seed, class_names=("rare", "frequent"), num_evaluations=2)
        split = json.loads((folder / "split.json").read_text()) | {"labeled": [2, 40]}
        (folder / "split.json").write_text(json.dumps(split))
        scores = {"accuracy": 0.5, "geometric_mean": 0.5}
        lines = [
            {"step": 300 * (i + 1), "test": scores, "pseudo": dict.fromkeys(("share", "error", "precision"), each)}
            for i, each in enumerate(errors)
        ]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        recorded.append(read_run(folder))
    figure = pseudo_label_errors(methods_of(recorded))
    assert figure is not None
    image = cells(figure.axes[0])
    half = image.shape[1] // 2
    np.testing.assert_allclose(image[:, 0], [30, 50])  # frequent: mean of 0.2 and 0.4; rare: one seed knows
    np.testing.assert_allclose(image[:, half - 1], image[:, 0])
    np.testing.assert_allclose(image[:, half], [0, np.nan])


def test_precision_and_recall_are_side_by_side_at_three_steps_averaged_over_seeds() -> None:
    seeds = [run_with("fixmatch", "prg", accuracy=[0.5] * 10, seed=seed) for seed in (1, 2)]
    assert precision_and_recall(methods_of(seeds)) is None, "no precision was recorded"
    for run, off in zip(seeds, (-0.1, 0.1), strict=True):
        for i, line in enumerate(run.lines, start=1):
            line["test"] |= {"precision": [0.05 * i, 0.8 + off], "recall": [0.9, 0.08 * i]}
    figure = precision_and_recall(methods_of(seeds))
    assert figure is not None
    expected = [[10, 30, 50, 90, 90, 90], [80, 80, 80, 16, 48, 80]]  # a fifth, three fifths and all of ten evaluations
    np.testing.assert_allclose(cells(figure.axes[0]), expected)
    assert tick_labels(figure.axes[0].xaxis) == ["20", "60", "100"] * 2
    assert {"precision", "recall", "10", "48"} <= words(figure)


def with_estimates(guidance: str, *estimates: list[float], name: str = "pool_share", seed: int = 1) -> Run:
    """A run whose evaluations recorded these estimates."""
    run = run_with("fixmatch", guidance, accuracy=[0.5] * len(estimates), seed=seed)
    for line, estimate in zip(run.lines, estimates, strict=True):
        line["guidance"] = {name: estimate}
    return run


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for bars in axes.containers for bar in bars]


def test_estimates_are_the_last_ones_averaged_over_seeds_with_the_class_of_most_labels_first() -> None:
    runs = [with_estimates("prg", [0.9, 0.1], last, seed=seed) for seed, last in ((1, [0.2, 0.8]), (2, [0.4, 0.6]))]
    for run in runs:
        run.split.update(labeled=[2, 40], unlabeled=[10, 30])
    figure = guidance_estimates(methods_of(runs), "pool_share")
    assert figure is not None
    (axes,) = figure.axes
    np.testing.assert_allclose(heights(axes), [70, 30])
    assert tick_labels(axes.xaxis) == ["dog", "cat"]
    (truth,) = axes.collections
    np.testing.assert_allclose([height for ((_, height), _) in truth.get_segments()], [75, 25])


def test_only_pool_shares_of_a_known_pool_are_drawn_with_the_true_shares() -> None:
    other, unknown = with_estimates("prg", [0.5, -0.25], name="bias"), with_estimates("prg", [0.5, 0.5])
    unknown.split["unknown"] = 40
    for run, name in ((other, "bias"), (unknown, "pool_share")):
        figure = guidance_estimates(methods_of([run]), name)
        assert figure is not None
        assert len(figure.axes[0].collections) == 0
    figure = guidance_estimates(methods_of([other]), "bias")
    assert figure is not None
    np.testing.assert_allclose(heights(figure.axes[0]), [50, -25])
    assert figure.axes[0].get_ylim()[0] < -25, "a negative estimate is visible"


def test_a_method_without_an_estimate_has_no_panel() -> None:
    plain, guided = run_with("fixmatch", "none", accuracy=[0.5]), with_estimates("prg", [0.5, 0.5])
    methods = methods_of([plain, guided])
    assert estimate_names(methods) == ["pool_share"]
    assert [has_estimate(method, "pool_share") for method in methods] == [False, True]
    figure = guidance_estimates(methods, "pool_share")
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["fixmatch + prg"]
    assert guidance_estimates(methods, "bias") is None
