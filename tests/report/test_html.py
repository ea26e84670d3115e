"""The HTML report: its tables, its figures and their captions."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

import mnar.run
from mnar.guidances import GUIDANCES, Guidance
from mnar.recipes import configure
from mnar.recipes.paper import PAPER
from mnar.report import by_setting, change_headings, comparisons, curves, html, write_report, write_run_report
from mnar.report.matrices import guidance_matrices
from mnar.report.tables import ABOUT_SHORT_RUNS
from mnar.run.collapse_record import record_collapse
from mnar.run.reader import Run, read_run
from mnar.training.metrics import overall_metrics
from tests.report.drawn import words
from tests.report.made_up import METHODS, run_with, write_run
from tests.support.tiny import TINY

CLASS_NAMES = ("ant", "bee", "cat", "dog")  # a figure of four classes is drawn faster than one of ten
OWN_DATA_ONLY = {"Recall per class"}
NUM_FIGURES = len(html.PLATES) - len(OWN_DATA_ONLY) + 2  # the labels of the only setting, and the transitions


def without_figures(page: str) -> str:
    return re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", "", page)


def rows_of(part: str) -> list[list[str]]:
    """The texts of the cells of all table rows in a part of a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)
    return [[_text(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def _text(cell: str) -> str:
    return " ".join(re.sub(r"<(?!/?strong)[^>]*>", " ", cell).split())


def summary_of(page: str) -> dict[str, dict[str, str]]:
    """The summary table: the cells by column, by method."""
    headings, *rows = rows_of(page.split('<section aria-label="Summary">')[1].split("</section>")[0])
    return {method: dict(zip(headings[1:], cells, strict=True)) for method, *cells in rows}


def changes_of(page: str) -> list[list[str]]:
    """The headings and rows of the first table "What PRG changed"."""
    return rows_of(page.split("<h2>What PRG changed</h2>")[1].split("</section>")[0])


def captions_of(page: str) -> dict[str, str]:
    """The captions of the figures by title."""
    return dict(re.findall(r"<h2>([^<]*)</h2>\s*<figure>\s*<figcaption>([^<]*)", page))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        read_run(
            write_run(
                folder / f"{learner}+{guidance}-{seed}",
                learner,
                guidance,
                seed=seed,
                class_names=CLASS_NAMES,
                num_evaluations=24,
            )
        )
        for learner, guidance in METHODS
        for seed in (1, 2)
    ]
    write_report(runs, folder / "report.html", title="Four methods, <two> seeds")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_has_every_method_every_figure_and_what_prg_changed(page: str) -> None:
    methods = [learner if guidance == "none" else f"{learner} + {guidance}" for learner, guidance in METHODS]
    assert [*summary_of(page)] == methods
    assert page.count("<img ") == page.count("data:image/svg+xml;base64,") == NUM_FIGURES
    assert set(captions_of(page)) == {
        *({plate.title for plate in html.PLATES} - OWN_DATA_ONLY),
        "Labelled and unlabelled samples",
        "Class transitions",
    }
    headings, *changes = changes_of(page)
    assert headings == [*change_headings()]
    assert [row[:3] for row in changes] == [[method, "fixmatch", "2"] for method in methods[2:]]
    assert all(re.fullmatch(r"[\d.]+ → [\d.]+ \([+−][\d.]+(, within the spread)?\)", cell) for cell in changes[0][3:5])
    assert "seeds that both have: the last evaluation, averaged" in " ".join(page.split()), "the runs are short"
    assert "Four methods, &lt;two&gt; seeds" in page


def test_every_figure_has_an_alternative_text_and_an_explanation(page: str) -> None:
    assert len(re.findall(r'<img [^>]*alt="[^"]{40,}"', page)) == NUM_FIGURES
    assert page.count("<figcaption>") == NUM_FIGURES


def test_the_summary_has_every_overall_metric_and_two_other_accuracies(page: str) -> None:
    titles = [metric.title for metric in overall_metrics()]
    columns = [f"{title[0].upper()}{title[1:]}, % median of last 20" for title in titles]
    for cells in summary_of(page).values():
        assert [*cells] == [*columns, "Accuracy, % final", "Accuracy, % best on test", "Runs"]
        assert all(re.fullmatch(r"(<strong>)?\d+\.\d ± \d+\.\d(</strong>)?", cells[name]) for name in columns)


@pytest.mark.usefixtures("outlines")
def test_the_best_method_is_bold_in_each_compared_column(tmp_path: Path) -> None:
    scores = {"none": (0.5, 0.6, 0.2), "prg": (0.7, 0.6, 0.1), "prg_last": (0.9, 0.9, 0.05)}
    runs = [
        run_with("fixmatch", guidance, accuracy=[accuracy], geometric_mean=[0.0], recall=(recall, recall))
        for guidance, (accuracy, recall, _) in scores.items()
    ]
    for run, (_, _, calibration_error) in zip(runs, scores.values(), strict=True):
        run.lines[-1]["test"]["calibration_error"] = calibration_error
    runs[2].config["train"]["iterations"] = 1000  # an unfinished method is not the best one
    write_report(runs, tmp_path / "report.html", title="Three methods")
    methods = summary_of((tmp_path / "report.html").read_text())
    bold = {
        column: [name for name, cells in methods.items() if "<strong>" in cells[column]]
        for column in methods["fixmatch"]
    }
    median = "% median of last 20"
    assert bold == {
        f"Accuracy, {median}": ["fixmatch + prg"],
        f"Geometric mean, {median}": [],  # all methods have zero
        f"Calibration error, {median}": ["fixmatch + prg"],  # the lowest one
        f"Balanced accuracy, {median}": ["fixmatch", "fixmatch + prg"],
        f"Macro-F1, {median}": [],  # no run recorded it
        "Accuracy, % final": [],
        "Accuracy, % best on test": [],
        "Runs": [],
    }
    assert methods["fixmatch"][f"Accuracy, {median}"] == "50.0"
    assert methods["fixmatch"][f"Macro-F1, {median}"] == "–"


def test_the_page_has_no_scripts_and_no_external_resources(page: str) -> None:
    assert not re.search(r"https?:|<script|<link|@import|url\(", without_figures(page))


def test_names_are_escaped(tmp_path: Path) -> None:
    runs = [
        run_with("fixmatch", guidance, accuracy=[score], recall=(score, score))
        for guidance, score in (("none", 0.5), ("prg", 0.6))
    ]
    for run in runs:
        run.split["class_names"] = ["<b>bold</b>", "<script>"]
        run.split["dataset"] = "<i>"
        run.lines[-1]["test"]["predicted_share"] = [0.5, 0.5]
    write_report(runs, tmp_path / "report.html", title="<u>")
    page = (tmp_path / "report.html").read_text()
    assert changes_of(page)[1][-1] == "&lt;b&gt;bold&lt;/b&gt; +10.0, no class loses"
    assert not re.search(r"<(b|i|u|script)>", page)


def test_a_single_supervised_run_has_a_page_without_pseudo_label_figures(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", "supervised", "none", class_names=CLASS_NAMES))
    write_report([run], tmp_path / "report.html", title="One run")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img ") == 5  # labels, curves, confusion, precision and recall, shares
    assert "What PRG changed" not in page
    assert "±" not in re.findall(r"<tbody>.*?</tbody>", page, re.DOTALL)[0]


@pytest.fixture
def own_run(tmp_path: Path) -> Path:
    """A run on own data: 53 labels for training, 72 held-out labels, 2,575 samples without a label."""
    folder = write_run(tmp_path / "run", class_names=("中文", "dog"), num_evaluations=2)
    split = {**json.loads((folder / "split.json").read_text()), "unlabeled": [50, 3], "unknown": 2575}
    (folder / "split.json").write_text(json.dumps({**split, "test_is_trained_on": False}))
    return folder


@pytest.mark.filterwarnings("error")  # matplotlib's font has no Chinese characters
def test_the_page_of_own_data_counts_every_sample_once_and_has_balanced_accuracy(own_run: Path) -> None:
    write_run_report(own_run)
    page = (own_run / "report.html").read_text()
    (task,) = re.findall(r'<p class="task">([^<]*)</p>', page)
    assert task.endswith(
        "2 classes, 2,700 samples: 53 labels for training, 72 held-out labels and 2,575 without a label"
    )
    assert "The scores are on the held-out labels, whose class distribution is that of the labels" in page
    assert "If the figures show boxes instead of 中 文, install a font" in page
    assert "Balanced accuracy, %" in page
    captions = captions_of(page)
    assert {"Recall per class", "Learning curves"} <= captions.keys()
    assert "no bar here is the truth" in captions["Class shares: labels, pseudo-labels, predictions"]
    assert "true" not in captions["Labelled and unlabelled samples"]
    (run,) = by_setting([read_run(own_run)])[0].methods
    assert "Test balanced accuracy" in words(curves.learning_curves([run]))


@pytest.mark.usefixtures("outlines")
def test_the_page_of_own_data_has_its_labels_only_baseline_once_that_is_finished(own_run: Path) -> None:
    baseline = write_run(own_run / "supervised", "supervised", "none", class_names=("中文", "dog"), num_evaluations=2)
    (baseline / "split.json").write_text((own_run / "split.json").read_text())
    for expected in (["fixmatch"], ["supervised", "fixmatch"]):
        write_run_report(own_run)
        assert [*summary_of((own_run / "report.html").read_text())] == expected
        (baseline / "model.safetensors").touch()


@pytest.mark.usefixtures("outlines")
def test_a_collapse_that_the_run_folder_records_is_on_the_page(own_run: Path) -> None:
    record_collapse(own_run, {"step": 60, "lr": 0.03, "seen": "the loss is 98", "action": "restarted"})
    write_run_report(own_run)
    sentence = "the run did not learn with a learning rate of 0.03: the loss is 98 (step 60, restarted)."
    assert f"fixmatch, seed 1: {sentence}" in (own_run / "report.html").read_text()


@pytest.mark.usefixtures("outlines")
def test_unfinished_runs_are_pointed_out(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", "supervised", "none"))
    run.config["train"]["iterations"] = 1000
    write_report([run], tmp_path / "report.html", title="Half a run")
    page = (tmp_path / "report.html").read_text()
    summary, runs = page.split("Runs and environment")
    assert "at step 600 of 1,000" in summary
    assert "600 of 1,000" in runs


@pytest.mark.usefixtures("outlines")
@pytest.mark.parametrize("num_evaluations", [30, 100])
def test_the_page_warns_about_the_median_of_short_runs(tmp_path: Path, num_evaluations: int) -> None:
    write_report([run_with("fixmatch", "none", accuracy=[0.5] * num_evaluations)], tmp_path / "page.html", title="Run")
    assert (ABOUT_SHORT_RUNS in (tmp_path / "page.html").read_text()) == (num_evaluations == 30)


def test_the_old_page_stays_if_drawing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(runs: Sequence[Run]) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(html, "PLATES", (*html.PLATES[:1], html.Plate(broken, "Broken", "No figure.")))
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="no ink"):
        write_report([run_with("fixmatch", "none", accuracy=[0.5])], path, title="New")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


@pytest.fixture(scope="module")
def guided_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """A run with PRG by its number of classes."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        k: read_run(
            write_run(folder / str(k), "fixmatch", "prg", class_names=[f"name{i}" for i in range(k)], num_evaluations=8)
        )
        for k in (10, 100)
    }


DRAWINGS: dict[str, Callable[..., Figure | None]] = {
    "Labelled and unlabelled samples": comparisons.label_distributions,
    "Class transitions": partial(guidance_matrices, name="transitions"),
    **{plate.title: plate.draw for plate in html.PLATES if plate.title not in OWN_DATA_ONLY},
}


@pytest.mark.parametrize("title", DRAWINGS)
def test_ten_classes_are_labelled_by_name_and_a_hundred_by_rank(guided_runs: dict[int, Run], title: str) -> None:
    draw = DRAWINGS[title]
    for k, run in guided_runs.items():
        settings = by_setting([run])
        figure = draw(settings if draw is comparisons.label_distributions else settings[0].methods)
        assert figure is not None
        names, texts = {*run.split["class_names"]}, words(figure)
        shows_classes = draw not in (curves.learning_curves, curves.pseudo_label_health)
        assert names & texts == (names if shows_classes and k == 10 else set())
        assert len(texts) < 110


def replace_plates(patch: pytest.MonkeyPatch, replace: Callable[[html.Plate], html.Plate]) -> None:
    """Replace every figure of the report, also those of the guidances."""
    real = html.guidance_plates
    patch.setattr(html, "OVERVIEWS", [replace(plate) for plate in html.OVERVIEWS])
    patch.setattr(html, "PLATES", [replace(plate) for plate in html.PLATES])
    patch.setattr(html, "guidance_plates", lambda methods: [replace(plate) for plate in real(methods)])


@pytest.fixture
def outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all figures empty, because empty figures take no time to draw."""
    replace_plates(monkeypatch, lambda plate: plate._replace(draw=lambda parts: Figure()))


@pytest.mark.usefixtures("outlines")
def test_each_setting_has_a_section_with_its_own_table_of_changes(tmp_path: Path) -> None:
    runs = [
        run_with("fixmatch", guidance, accuracy=[accuracy])
        for guidance, accuracy in (("none", 0.5), ("prg", 0.6), ("none", 0.3), ("prg", 0.2))
    ]
    for run in runs[2:]:
        run.config["protocol"]["gamma"] = 50.0
    write_report(runs, tmp_path / "report.html", title="Two settings")
    page = (tmp_path / "report.html").read_text()
    before, first, second = page.split('<details class="setting"')
    assert page.count("<img ") == len(html.OVERVIEWS) + 2 * len(html.PLATES)
    assert before.count('class="setting">cadr γ=') == 2, "the summary"
    assert first.startswith(" open>\n<summary>cadr γ=20</summary>")
    assert changes_of(first)[1][3] == "50.0 → 60.0 (+10.0)"
    assert "the median of the last evaluations, averaged" in " ".join(first.split())
    assert second.startswith(">\n<summary>cadr γ=50</summary>")
    assert changes_of(second)[1][3] == "30.0 → 20.0 (−10.0)"


@pytest.mark.slow
def test_sections_that_are_drawn_side_by_side_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [read_run(write_run(tmp_path / str(n), guidance=("none", "prg")[n % 2])) for n in range(4)]
    for run in runs[2:]:
        run.config["protocol"]["gamma"] = 50.0
    monkeypatch.setattr(html, "MANY_RUNS", len(runs))
    pages = []
    for processes in (1, 2):
        write_report(runs, tmp_path / "page.html", title="all", processes=processes)
        pages.append((tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("outlines")
def test_the_page_names_how_many_settings_and_methods_have_no_figures(tmp_path: Path) -> None:
    many_settings = [run_with("fixmatch", "none", accuracy=[0.5]) for _ in range(16)]
    for gamma, run in enumerate(many_settings):
        run.config["protocol"]["gamma"] = gamma
    many_methods = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=float(alpha)) for alpha in range(16)]
    for runs, remarks in (
        (many_settings, ("Not drawn: 2 of 16 settings;", "Only the first 8 of 16 settings have figures per class")),
        (many_methods, ("Not drawn: 2 of 16 methods;",)),
    ):
        write_report(runs, tmp_path / "report.html", title="Many")
        page = (tmp_path / "report.html").read_text()
        assert all(remark in page for remark in remarks)
        assert page.count('<tr>\n        <th scope="row"><span class="swatch"') == len(runs), (
            "the summary has all of them"
        )


@pytest.fixture
def column() -> list[Run]:
    """One run of every method in a column of Table 1; the runs with PRG recorded transitions."""
    names = [name for name in PAPER if name.startswith("table1/cifar10-cadr-g20/")]
    runs = [run_with("fixmatch", "none", accuracy=[0.5]) for _ in names]
    for name, run in zip(names, runs, strict=True):
        run.config.update(configure(recipe=name).to_dict())
        run.lines[0]["matrices"] = {"test_confusion": [[9, 1], [1, 9]]}
        if "+prg" in name:
            run.lines[0]["matrices"]["transitions"] = [[0, 1], [1, 0]]
    return runs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The names of the settings or methods that each figure, by its title, is asked to draw. The figures are empty."""
    given: dict[str, list[str]] = {}

    def recorded(plate: html.Plate) -> html.Plate:
        def draw(parts: Sequence[Any]) -> Figure | None:
            given[plate.title] = [part.name for part in parts]
            return Figure() if parts else None

        return plate._replace(draw=draw)

    replace_plates(monkeypatch, recorded)
    return given


PRG_OF_TABLE_1 = [
    f"{learner} + {guidance}"
    for learner in ("fixmatch", "simmatch")
    for guidance in ("prg", "prg_last (alpha=3)", "prg_last (alpha=1)")
]


def test_all_methods_of_a_column_of_table_1_have_a_panel(
    column: list[Run], drawn: dict[str, list[str]], tmp_path: Path
) -> None:
    write_report(column, tmp_path / "report.html", title="Table 1")
    assert len(drawn["Confusion on the test set"]) == len(column) == 14
    assert drawn["Class transitions"] == PRG_OF_TABLE_1
    page = (tmp_path / "report.html").read_text()
    assert "Not drawn" not in page
    assert f'alt="Class transitions of {", ".join(PRG_OF_TABLE_1)}.' in page


def test_a_figure_without_room_for_all_methods_keeps_prg_and_the_learners_that_prg_guides(
    column: list[Run], drawn: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(html, "MOST_PANELS", 9)
    write_report(column, tmp_path / "report.html", title="Table 1")
    assert drawn["Class transitions"] == PRG_OF_TABLE_1
    assert drawn["Confusion on the test set"] == ["pi_model", "fixmatch", "simmatch", *PRG_OF_TABLE_1]
    assert len(drawn["Learning curves"]) == 14
    captions = captions_of((tmp_path / "report.html").read_text())
    assert [title for title, caption in captions.items() if "Not drawn: 5 of 14 methods;" in caption] == [
        "Confusion on the test set",
        "Class shares: labels, pseudo-labels, predictions",
    ]


def test_a_figure_of_matrices_names_the_unfinished_methods_that_will_record_one_later(
    drawn: dict[str, list[str]], tmp_path: Path
) -> None:
    runs = {
        (learner, guidance): read_run(write_run(tmp_path / f"{learner}+{guidance}", learner, guidance))
        for learner, guidance in METHODS
    }
    for method, run in runs.items():
        run.config["train"]["iterations"] = 12_000
        if method != ("fixmatch", "prg"):
            for line in run.lines:
                line.pop("matrices", None)
    write_report(list(runs.values()), tmp_path / "report.html", title="Unfinished")
    captions = captions_of((tmp_path / "report.html").read_text())
    awaited = {title: caption.partition("Not recorded yet: ")[2] for title, caption in captions.items()}
    assert {title: names for title, names in awaited.items() if names} == {
        "Class transitions": "fixmatch + prg_last.",
        "Confusion of pseudo-labels": "fixmatch, fixmatch + prg_last.",
        "Confusion on the test set": "supervised, fixmatch, fixmatch + prg_last.",
    }
    assert drawn["Confusion on the test set"] == ["fixmatch + prg"]


def test_a_report_without_runs_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run folder"):
        write_report([], tmp_path / "report.html", title="Nothing")


class Noting(Guidance):
    """A guidance that changes nothing and records two matrices and an estimate per class."""

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        return probs

    def matrices(self) -> dict[str, Tensor]:
        k = self.task.num_classes
        return {"affinity": torch.arange(1.0, k * k + 1).reshape(k, k) / (k * k), "visit_counts": torch.ones(k, k)}

    def estimates(self) -> dict[str, Tensor]:
        return {"class_weight": torch.linspace(0.5, 1.5, self.task.num_classes)}


def test_all_matrices_and_estimates_of_a_new_guidance_are_in_the_report_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GUIDANCES, "noting", Noting)
    config = configure(dataset="digits", guidance="noting", iterations=20, settings=TINY)
    mnar.run.new_run(config, tmp_path / "run")
    drawn: dict[str, set[str]] = {}

    def recorded(plate: html.Plate) -> html.Plate:
        def draw(parts: Sequence[Any]) -> Figure | None:
            if "guidance" not in plate.title:
                return None
            figure = plate.draw(parts)
            assert figure is not None
            drawn[plate.title] = words(figure)
            return figure

        return plate._replace(draw=draw)

    replace_plates(monkeypatch, recorded)
    write_run_report(tmp_path / "run")
    captions = captions_of((tmp_path / "run/report.html").read_text())
    titles = {
        "Matrix of the guidance: affinity": {"step 20", "sum 50.5", "affinity"},
        "Matrix of the guidance: visit counts": {"step 20", "sum 100", "visit_counts"},
        "Estimate of the guidance: class weight": {"fixmatch + noting"},
    }
    assert captions.keys() == drawn.keys() == titles.keys()
    for title, expected in titles.items():
        assert expected <= drawn[title]
        assert {*"0123456789"} <= drawn[title], "the names of the classes"
