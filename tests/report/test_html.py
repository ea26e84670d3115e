import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from mnar.recipes import configure
from mnar.recipes.paper import PAPER
from mnar.report import by_setting, comparisons, curves, html, write_report
from mnar.run.reader import Run, read_run
from tests.report.drawn import words
from tests.report.made_up import METHODS, run_with, write_run

NUM_FIGURES = len(html.PLATES) + 1  # with one setting: nothing to compare, but its labels


def without_figures(page: str) -> str:
    return re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", "", page)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        read_run(write_run(folder / f"{learner}+{guidance}-{seed}", learner, guidance, seed=seed))
        for learner, guidance in METHODS
        for seed in (1, 2)
    ]
    write_report(runs, folder / "report.html", title="Four methods, <two> seeds")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_has_every_method_every_figure_and_what_prg_changed(page: str) -> None:
    for learner, guidance in METHODS:
        assert (learner if guidance == "none" else f"{learner} + {guidance}") in page
    assert page.count("<img ") == page.count("data:image/svg+xml;base64,") == NUM_FIGURES
    assert "Against fixmatch, fixmatch + prg raised final test accuracy" in page
    assert "Four methods, &lt;two&gt; seeds" in page


def test_every_figure_has_alternative_text_and_says_how_to_read_it(page: str) -> None:
    assert len(re.findall(r'<img [^>]*alt="[^"]{40,}"', page)) == NUM_FIGURES
    assert page.count("<figcaption>") == NUM_FIGURES


def test_the_page_loads_nothing_and_executes_nothing(page: str) -> None:
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
    assert "class &lt;b&gt;bold&lt;/b&gt; gaining most" in page
    assert not re.search(r"<(b|i|u|script)>", page)


def test_a_single_supervised_run_has_a_page_without_pseudo_label_figures(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", "supervised", "none"))
    write_report([run], tmp_path / "report.html", title="One run")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img ") == 5  # labels, curves, confusion, precision and recall, shares
    assert "±" not in re.findall(r"<tbody>.*?</tbody>", page, re.DOTALL)[0]


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
def test_of_short_runs_the_page_says_that_the_median_reaches_far_back(tmp_path: Path, num_evaluations: int) -> None:
    write_report([run_with("fixmatch", "none", accuracy=[0.5] * num_evaluations)], tmp_path / "page.html", title="Run")
    assert ("Of short runs" in (tmp_path / "page.html").read_text()) == (num_evaluations == 30)


def test_the_old_page_stays_when_drawing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(runs: Sequence[Run]) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(html, "PLATES", (*html.PLATES[:1], html.Plate(broken, "Broken", "Not at all.")))
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="no ink"):
        write_report([run_with("fixmatch", "none", accuracy=[0.5])], path, title="New")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("draw", [comparisons.label_distributions, *(plate.draw for plate in html.PLATES)])
def test_ten_classes_are_named_and_a_hundred_ranked(tmp_path: Path, draw: Callable[..., Figure | None]) -> None:
    for k in (10, 100):
        names = [f"name{i}" for i in range(k)]
        settings = by_setting([read_run(write_run(tmp_path / str(k), "fixmatch", "prg", class_names=names))])
        figure = draw(settings if draw is comparisons.label_distributions else settings[0].methods)
        assert figure is not None
        shows_classes = draw not in (curves.learning_curves, curves.pseudo_label_health)
        assert set(names) & words(figure) == (set(names) if shows_classes and k == 10 else set())
        assert len(words(figure)) < 110


@pytest.fixture
def outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures with nothing in them, which are drawn at once."""
    empty = [plate._replace(draw=lambda parts: Figure()) for plate in (*html.OVERVIEWS, *html.PLATES)]
    monkeypatch.setattr(html, "OVERVIEWS", empty[: len(html.OVERVIEWS)])
    monkeypatch.setattr(html, "PLATES", empty[len(html.OVERVIEWS) :])


@pytest.mark.usefixtures("outlines")
def test_each_setting_has_a_section_of_its_own_with_what_prg_changed_there(tmp_path: Path) -> None:
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
    assert "raised test accuracy from 50.0 to 60.0" in first
    assert second.startswith(">\n<summary>cadr γ=50</summary>")
    assert "lowered test accuracy from 30.0 to 20.0" in second


@pytest.mark.usefixtures("outlines")
def test_what_is_too_much_for_a_page_is_left_out_and_said(tmp_path: Path) -> None:
    many_settings = [run_with("fixmatch", "none", accuracy=[0.5]) for _ in range(16)]
    for gamma, run in enumerate(many_settings):
        run.config["protocol"]["gamma"] = gamma
    many_methods = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=float(alpha)) for alpha in range(16)]
    for runs, said in (
        (many_settings, ("Left out: 2 of 16 settings;", "the first 8 of 16 settings are drawn")),
        (many_methods, ("Left out: 2 of 16 methods;",)),
    ):
        write_report(runs, tmp_path / "report.html", title="Many")
        page = (tmp_path / "report.html").read_text()
        assert all(text in page for text in said)
        assert page.count('<tr>\n        <th scope="row"><span class="swatch"') == len(runs), "the summary has all"


@pytest.fixture
def column() -> list[Run]:
    """A run of every method in a column of Table 1; those that track class transitions recorded some."""
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
    """By the title of a figure, what it was given to draw, which it does not."""
    given: dict[str, list[str]] = {}

    def outlined(plate: html.Plate) -> html.Plate:
        def draw(parts: Sequence[Any]) -> Figure | None:
            given[plate.title] = [part.name for part in parts]
            return Figure() if parts else None

        return plate._replace(draw=draw)

    monkeypatch.setattr(html, "PLATES", [outlined(plate) for plate in html.PLATES])
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
    assert "Left out" not in page
    assert f'alt="Class transitions of {", ".join(PRG_OF_TABLE_1)}.' in page


def test_a_figure_is_cut_to_methods_it_can_show_and_prg_and_the_learners_it_guides_stay(
    column: list[Run], drawn: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(html, "MOST_PANELS", 9)
    write_report(column, tmp_path / "report.html", title="Table 1")
    assert drawn["Class transitions"] == PRG_OF_TABLE_1
    assert drawn["Confusion on the test set"] == ["pi_model", "fixmatch", "simmatch", *PRG_OF_TABLE_1]
    assert len(drawn["Learning curves"]) == 14
    said = re.findall(
        r"<h2>([^<]*)</h2>\s*<figure>\s*<figcaption>[^<]*Left out: 5 of 14 methods;",
        (tmp_path / "report.html").read_text(),
    )
    assert said == ["Confusion on the test set", "Class shares: labels, pseudo-labels, predictions"]


def test_a_figure_of_matrices_says_which_methods_under_way_have_none_yet_and_not_which_never_will(
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
    write_report(list(runs.values()), tmp_path / "report.html", title="Under way")
    captions = dict(
        re.findall(r"<h2>([^<]*)</h2>\s*<figure>\s*<figcaption>([^<]*)", (tmp_path / "report.html").read_text())
    )
    said = {title: caption.partition("Not recorded yet: ")[2] for title, caption in captions.items()}
    assert {title: names for title, names in said.items() if names} == {
        "Class transitions": "fixmatch + prg_last.",
        "Confusion of pseudo-labels": "fixmatch, fixmatch + prg_last.",
        "Confusion on the test set": "supervised, fixmatch, fixmatch + prg_last.",
    }
    assert drawn["Confusion on the test set"] == ["fixmatch + prg"]


def test_no_runs_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run folder"):
        write_report([], tmp_path / "report.html", title="Nothing")


def test_importing_the_report_does_not_import_matplotlib() -> None:
    code = "import sys, mnar.report; sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
