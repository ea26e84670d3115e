import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from mnar.report import Run, figures, read_run
from mnar.report.record import Floats
from mnar.report.style import svg
from tests.report.made_up import METHODS, run_with, write_run

DRAWN = (
    figures.learning_curves,
    figures.transition_matrices,
    figures.pseudo_label_errors,
    figures.confusion_matrices,
    figures.class_shares,
    figures.pseudo_label_health,
)


def words(figure: Figure) -> set[str]:
    texts = ElementTree.fromstring(svg(figure)).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(text.itertext()).strip() for text in texts}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [read_run(write_run(folder / f"{i}", *method, num_evaluations=6)) for i, method in enumerate(METHODS)]


@pytest.mark.parametrize("draw", DRAWN)
def test_ten_classes_are_named_and_a_hundred_ranked(tmp_path: Path, draw: Callable[[list[Run]], Figure | None]) -> None:
    for k in (10, 100):
        names = [f"name{i}" for i in range(k)]
        folder = write_run(tmp_path / str(k), "fixmatch", "prg", class_names=names, num_evaluations=4)
        figure = draw([read_run(folder)])
        assert figure is not None
        shows_classes = draw not in (figures.learning_curves, figures.pseudo_label_health)
        assert set(names) & words(figure) == (set(names) if shows_classes and k == 10 else set())
        assert len(words(figure)) < 60


def test_names_are_drawn_as_they_are_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", class_names=("<b>", "$5$", "a&b"), num_evaluations=2)
    assert {"<b>", "$5$", "a&b"} <= words(figures.class_shares([read_run(folder)]))


def test_a_figure_is_the_same_bytes_every_time(runs: list[Run]) -> None:
    assert svg(figures.learning_curves(runs)) == svg(figures.learning_curves(runs))


def test_supervised_runs_have_no_figures_of_pseudo_labels(runs: list[Run]) -> None:
    assert figures.transition_matrices(runs[:1]) is None
    assert figures.pseudo_label_errors(runs[:1]) is None
    assert figures.pseudo_label_health(runs[:1]) is None
    assert words(figures.class_shares(runs[:1])) >= {"labels", "test predictions", "truth"}
    assert "pseudo-labels" not in words(figures.class_shares(runs[:1]))


def test_methods_keep_their_colour_where_others_are_missing(runs: list[Run]) -> None:
    lines = figures.learning_curves(runs).axes[0].lines
    colour = {line.get_label(): to_hex(line.get_color()) for line in lines}
    errors = figures.pseudo_label_errors(runs)  # without the supervised run
    assert errors is not None
    titles = [text for axes in errors.axes for text in axes.findobj(Text) if text.get_text() in colour]
    assert [text.get_text() for text in titles] == ["fixmatch", "fixmatch + prg", "fixmatch + prg_last"]
    assert [to_hex(text.get_color()) for text in titles] == [colour[text.get_text()] for text in titles]


def test_the_thick_curve_is_the_mean_over_the_steps_that_all_seeds_have() -> None:
    long = run_with("fixmatch", "none", accuracy=[0.1, 0.3, 0.5], seed=1)
    short = run_with("fixmatch", "none", accuracy=[0.3, 0.5], seed=2)
    short.config["train"]["iterations"] = long.config["train"]["iterations"]
    *thin, thick = figures.learning_curves([long, short]).axes[0].lines
    assert len(thin) == 2
    np.testing.assert_allclose(np.asarray(thick.get_xydata()), [[10, 20], [20, 40]])


def test_pseudo_label_errors_put_rare_classes_last_and_average_the_seeds_that_know(tmp_path: Path) -> None:
    recorded = []
    for seed, errors in ((1, [[0.5, 0.2], [None, 0.0]]), (2, [[None, 0.4], [None, 0.0]])):
        folder = write_run(tmp_path / f"{seed}", seed=seed, class_names=("rare", "frequent"))
        split = json.loads((folder / "split.json").read_text()) | {"labeled": [2, 40]}
        (folder / "split.json").write_text(json.dumps(split))
        lines = [{"step": 300 * (i + 1), "pseudo": {"error": each}} for i, each in enumerate(errors)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        recorded.append(read_run(folder))
    figure = figures.pseudo_label_errors(recorded)
    assert figure is not None
    image: Floats = np.ma.filled(np.ma.asarray(figure.axes[0].images[0].get_array()), np.nan)
    half = image.shape[1] // 2
    np.testing.assert_allclose(image[:, 0], [30, 50])  # frequent: mean of 0.2 and 0.4; rare: one seed knows
    np.testing.assert_allclose(image[:, half - 1], image[:, 0])
    np.testing.assert_allclose(image[:, half], [0, np.nan])


def test_confusion_is_of_the_last_matrix_of_all_seeds_in_percent_of_the_true_class() -> None:
    seeds = [run_with("fixmatch", "none", accuracy=[0.5, 0.5], seed=seed) for seed in (1, 2)]
    for run, last in zip(seeds, ([[30, 10], [0, 40]], [[30, 10], [20, 20]]), strict=True):
        run.lines[0]["matrices"] = {"test_confusion": [[0, 40], [40, 0]]}
        run.lines[1]["matrices"] = {"test_confusion": last}
    figure = figures.confusion_matrices(seeds)
    assert figure is not None
    np.testing.assert_allclose(np.asarray(figure.axes[0].images[0].get_array()), [[75, 25], [25, 75]])


def test_transitions_are_shown_from_the_first_that_happened_to_the_last() -> None:
    run = run_with("fixmatch", "prg", accuracy=[0.5] * 5)
    for line, count in zip(run.lines, (0, 8, 4, 2, 1), strict=True):
        line["matrices"] = {"transitions": [[0, count], [0, 0]]}
    figure = figures.transition_matrices([run])
    assert figure is not None
    assert {"step 20: 8 transitions", "step 30: 4 transitions", "step 50: 1 transitions"} <= words(figure)
