from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from mnar.bench import Bench, Cell, RunResult
from mnar.bench.result_files import write_results
from mnar.bench.rows import AFTER_A_FAILURE, SCHEDULE, circumstances, headings, how_to_read, notes, row
from mnar.recipes import RECIPES, TITLES
from mnar.terminal.bench_table import shown, terminal_tables
from mnar.training.headline import BEST, FINAL, headline_figures
from tests.bench.benches import OTHER, RECIPE, TINY, make_up

SEEDS = (1, 2, 3)
ACCURACIES = {1: 0.91, 2: 0.87, 3: 0.905}  # of the last evaluations; the very last is one less, the best one more
COUNTS = ("seeds", "done", "n")  # asked for; done; those that the figures are of
KINDS = ("json", "csv", "md", "html")
WITH_CLASSES = "precision-recall/cifar10-cadr-g50/fixmatch"


def evaluations(accuracy: float) -> list[float]:
    """Forty, of which only the last twenty count; their median is `accuracy`."""
    return [0.2] * 20 + [accuracy + 0.01] * 9 + [accuracy] * 10 + [accuracy - 0.01]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One cell with three seeds that are done, one with a seed that is under way and one not started."""
    bench = Bench(tmp_path, [RECIPE, OTHER], seeds=SEEDS, iterations=80, settings=TINY)
    for seed, accuracy in ACCURACIES.items():
        folder = bench.folders[RECIPE][seed]
        make_up(folder, bench.configs[folder], evaluations(accuracy), seconds=60.0 * seed, images_per_second=500 * seed)
    folder = bench.folders[OTHER][2]
    make_up(folder, bench.configs[folder], [0.3, 0.4], is_done=False)
    return bench


def written(cells: list[Cell], folder: Path) -> dict[str, str]:
    write_results(cells, folder)
    return {kind: (folder / f"results.{kind}").read_text() for kind in KINDS}


def test_mean_and_sd_over_seeds_are_those_of_the_headlines(bench: Bench) -> None:
    done, _ = bench.cells()
    entry = json.loads(written(bench.cells(), bench.folder)["json"])["cells"][0]
    by_hand = {
        "accuracy_median_last_20": list(ACCURACIES.values()),
        "accuracy_final": [accuracy - 0.01 for accuracy in ACCURACIES.values()],
        "accuracy_best_on_test": [accuracy + 0.01 for accuracy in ACCURACIES.values()],
        "geometric_mean": [accuracy / 2 for accuracy in ACCURACIES.values()],
    }
    assert entry["ours_percent"].keys() == by_hand.keys()
    assert entry["n"] == entry["done"] == len(done.counted) == 3
    for figure, values in by_hand.items():
        assert entry["ours_percent"][figure]["mean"] == pytest.approx(100 * sum(values) / 3)
        assert entry["ours_percent"][figure]["sd"] == pytest.approx(100 * statistics.stdev(values))
    assert row(done) == {
        "setting": "cadr-g20",
        "method": "fixmatch (model.width=4, train.batch_labeled=16, train.batch_unlabeled=32)",  # TINY
        "schedule": "–",
        "accuracy": "89.5 ± 2.2",
        "paper_accuracy": "–",
        "geometric_mean": "44.8 ± 1.1",
        "paper_geometric_mean": "–",
        FINAL: "88.5 ± 2.2",
        BEST: "90.5 ± 2.2",
        "n": "3",
        "minutes": "2.0",
        "images_per_second": "1,000",
    }


def test_one_seed_has_no_sd_and_none_no_figure(bench: Bench) -> None:
    cell = bench.cells()[1]
    assert (row(cell)["accuracy"], row(cell)[FINAL], row(cell)["n"]) == ("35.0", "40.0", "0 of 3"), (
        "as long as none is done"
    )
    empty = Cell(OTHER, RECIPES[OTHER], cell.folders, (), {})
    assert set([*row(empty).values()][2:]) == {"–", "0 of 3"}


def test_runs_under_way_do_not_count_beside_one_that_is_done(bench: Bench) -> None:
    folder = bench.folders[OTHER][1]
    make_up(folder, bench.configs[folder], evaluations(0.8))
    cell = bench.cells()[1]
    assert (row(cell)["accuracy"], row(cell)["n"]) == ("80.0", "1 of 3")
    assert cell.missing == "seed 2 at step 4, seed 3 not started"


class Tables(HTMLParser):
    """The cells of every table, row by row, and whatever points elsewhere or runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src") or name.startswith("on")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("td", "th") and self.rows and data.strip():
            self.rows[-1][-1] += data.strip()


HALF = {"recall": [0.5] * 10, "precision": [0.5] * 10, "predicted_share": [0.1] * 10}


def markdown_rows(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [line for line in rows if set(line) != {"---"}]


def test_markdown_and_html_hold_the_same_rows_as_the_terminal(bench: Bench) -> None:
    cells = bench.cells()
    texts = written(cells, bench.folder)
    lines = [headings(), *map(row, cells)]
    rows = [[value for column, value in line.items() if column != SCHEDULE] for line in lines]  # all are published
    assert markdown_rows(texts["md"]) == rows
    shown = [[value for i, value in enumerate(line) if i not in (0, 3, 5)] for line in rows]  # nothing of the paper's
    assert Tables(texts["html"]).rows == [shown[0], [rows[1][0]], *shown[1:]], "below their setting"


def test_a_schedule_other_than_the_published_one_is_named_beside_the_papers_figures(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RECIPE, OTHER], seeds=(1,), iterations=80, schedule="fast", settings=TINY)
    for folder, config in bench.configs.items():
        make_up(folder, config, evaluations(0.9))
    cells = bench.cells()
    texts = written(cells, bench.folder)
    headings_in_markdown, *rows = markdown_rows(texts["md"])
    assert [line[headings_in_markdown.index("schedule")] for line in rows] == ["fast", "fast"]
    assert "fast" in [value for line in Tables(texts["html"]).rows for value in line]
    assert [line["schedule"] for line in csv.DictReader(io.StringIO(texts["csv"]))] == ["fast", "fast"]
    assert [entry["schedules"] for entry in json.loads(texts["json"])["cells"]] == [["fast"], ["fast"]]
    assert [run["schedule"] for run in json.loads(texts["json"])["cells"][0]["runs"]] == ["fast"]
    assert circumstances(cells).startswith("schedule: fast; steps: 80")
    assert "The paper's figures belong to the published schedule." in how_to_read(cells)
    assert "schedule" in printed(shown(cells, 200), 200)
    same_folder = Bench(tmp_path, [RECIPE], seeds=(1,), iterations=80, settings=TINY).cells()
    assert "schedule: fast and published" in same_folder[0].failures[1]
    assert [cell.schedules for cell in Bench.existing(tmp_path).cells()] == [["fast"], ["fast"]]


def test_runs_with_the_published_schedule_have_no_column_of_schedules(bench: Bench) -> None:
    texts = written(bench.cells(), bench.folder)
    assert "schedule" not in markdown_rows(texts["md"])[0]
    assert "schedule" not in circumstances(bench.cells()) + how_to_read(bench.cells()) + texts["html"]
    assert {line["schedule"] for line in csv.DictReader(io.StringIO(texts["csv"]))} == {"published"}


def test_csv_parses_and_holds_the_figures_of_the_json_in_per_cent(bench: Bench) -> None:
    texts = written(bench.cells(), bench.folder)
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    entries = json.loads(texts["json"])["cells"]
    assert [line["recipe"] for line in rows] == [entry["recipe"] for entry in entries] == [RECIPE, OTHER]
    for line, entry in zip(rows, entries, strict=True):
        assert None not in line, "more values than headings"
        assert [int(line[name]) for name in COUNTS] == [entry[name] for name in COUNTS]
        for figure in entry["ours_percent"]:
            assert float(line[figure]) == pytest.approx(entry["ours_percent"][figure]["mean"], abs=1e-4)
            sd, in_csv = entry["ours_percent"][figure]["sd"], line[f"{figure}_sd"]
            assert in_csv == "" if sd is None else float(in_csv) == pytest.approx(sd, abs=1e-4)
    assert [[line[name] for name in COUNTS] for line in rows] == [["3", "3", "3"], ["3", "0", "1"]]
    assert float(rows[0]["minutes_per_run"]) == 2.0
    assert float(rows[0]["images_per_second"]) == 1000.0
    assert rows[0]["missing"] == ""
    assert rows[1]["missing"] == "seed 1 not started, seed 2 at step 4, seed 3 not started"


def test_json_has_every_run(bench: Bench) -> None:
    entry = json.loads(written(bench.cells(), bench.folder)["json"])["cells"][0]
    assert [run["seed"] for run in entry["runs"]] == list(SEEDS)
    accuracies = [run["ours_percent"]["accuracy_median_last_20"] for run in entry["runs"]]
    assert accuracies == pytest.approx([100 * accuracy for accuracy in ACCURACIES.values()]), "as those of the cell"
    assert {run["schedule"] for run in entry["runs"]} == {"published"}
    assert [run["minutes"] for run in entry["runs"]] == [1.0, 2.0, 3.0]
    others = {"seed", "step", "iterations", "is_done", "is_short", "minutes", "images_per_second", "device", "commit"}
    assert entry["runs"][0].keys() == {*others, "schedule", "ours_percent"}
    assert entry["runs"][0]["ours_percent"].keys() <= {*headline_figures()}
    assert {(run["step"], run["iterations"], run["is_done"], run["device"]) for run in entry["runs"]} == {
        (80, 80, True, "a machine")
    }


def test_the_papers_figures_stand_beside_ours_as_printed(tmp_path: Path) -> None:
    name = "table1/cifar10-cadr-g20/fixmatch+prg"
    cells = Bench(tmp_path, [name, name.replace("table1", "gm")], seeds=[1]).cells()
    assert row(cells[0])["paper_accuracy"] == "94.04 ± 0.18"
    entry, of_gm = json.loads(written(cells, tmp_path)["json"])["cells"]
    assert (entry["paper_percent"]["accuracy"], entry["paper_percent"]["accuracy_sd"]) == (94.04, 0.18)
    assert row(cells[1])["paper_geometric_mean"] == RECIPES[cells[1].name].printed_geometric_mean != "–"
    assert of_gm["paper_percent"]["geometric_mean"] == RECIPES[cells[1].name].geometric_mean
    assert "| 94.04 ± 0.18 |" in (tmp_path / "results.md").read_text()


def test_html_runs_no_script_and_needs_nothing_from_elsewhere(bench: Bench) -> None:
    html = written(bench.cells(), bench.folder)["html"]
    assert not Tables(html).tags & {"script", "link", "img", "iframe", "object", "form"}
    assert Tables(html).links == []
    assert not re.search(r"https?://|url\(|@import|javascript:", html)


def failed(reason: str, name: str = RECIPE) -> Cell:
    return Cell(name, RECIPES[name], {1: Path("nowhere")}, (), {1: reason})


def test_a_reason_is_shown_as_it_is_in_every_format(tmp_path: Path) -> None:
    reason = "no [data] in <b>x</b> & \"y\", | 'z'"
    texts = written([failed(reason), failed(reason, OTHER)], tmp_path)
    assert json.loads(texts["json"])["cells"][0]["failures"] == {"1": reason}
    assert texts["md"].count(reason) == 1, "once for all that it befell"
    assert f"- failed: {RECIPE}, {OTHER}: {reason}" in texts["md"]
    assert "<b>" not in texts["html"]
    assert "no [data] in &lt;b&gt;x&lt;/b&gt; &amp;" in texts["html"]
    assert [line["missing"] for line in csv.DictReader(io.StringIO(texts["csv"]))] == ["seed 1 failed"] * 2


@pytest.mark.parametrize(("num_evaluations", "is_short"), [(3, True), (75, True), (76, False)])
def test_every_format_says_how_to_read_the_median_and_what_to_read_where_it_reaches_back_far(
    num_evaluations: int, is_short: bool, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, [RECIPE], seeds=[1], iterations=2 * num_evaluations, settings=TINY)
    for path, config in bench.configs.items():
        make_up(path, config, [0.5] * num_evaluations)
    cells = bench.cells()
    texts = written(cells, tmp_path)
    for text in (texts["md"], texts["html"], printed(shown(cells, 80), 400)):
        assert "medians of the last 20 evaluations (of all evaluations, if a run has fewer)" in text
        assert "Best on test chooses the evaluation by the test set itself" in text
        assert ("more than a quarter of the training, so read the final accuracy instead." in text) is is_short


@pytest.mark.parametrize(
    ("seconds", "minutes"), [(0.18, "0.003"), (3.0, "0.05"), (7.4, "0.12"), (60.0, "1.0"), (6000.0, "100.0")]
)
def test_minutes_have_two_digits_that_count(seconds: float, minutes: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RECIPE], seeds=[1], iterations=4, settings=TINY)
    for path, config in bench.configs.items():
        make_up(path, config, [0.5], seconds=seconds)
    assert row(bench.cells()[0])["minutes"] == minutes


def test_where_no_run_has_results_the_terminal_has_no_line_about_them(tmp_path: Path) -> None:
    lines = printed(shown(Bench(tmp_path, [RECIPE], seeds=[1]).cells(), 80), 400).splitlines()
    assert lines[-2] == f"{RECIPE}: seed 1 not started"


def test_notes_name_the_cells_that_they_are_about_in_markdown_and_html(tmp_path: Path) -> None:
    name, recipe = next((name, recipe) for name, recipe in RECIPES.items() if recipe.note)
    cells = Bench(tmp_path, [name], seeds=[1]).cells()
    assert notes(cells) == {recipe.note: [name.partition("/")[2]]}
    texts = written(cells, tmp_path)
    assert f"- {name.partition('/')[2]}: {recipe.note}" in texts["md"]
    assert name.partition("/")[2] in texts["html"]


def test_circumstances_are_steps_hardware_and_commit(bench: Bench) -> None:
    assert circumstances(bench.cells()) == "steps: 80 (fewer than in the recipes); a machine; commit c0ffee"
    assert circumstances([failed("x")]) == ""


PRINTED = RECIPES[WITH_CLASSES].per_class or {}


def class_bench(folder: Path, steps: list[int]) -> Bench:
    """Recall of class c is 0.01 c and its precision 0.02 c at the first evaluation, 0.1 more at each later one."""
    only_at_these = ["train.eval_every=1048576"]
    bench = Bench(folder, [WITH_CLASSES], seeds=[2, 3], iterations=2**20, settings=only_at_these)
    scores = [
        {
            "recall": [0.01 * c + 0.1 * i for c in range(10)],
            "precision": [0.02 * c + 0.1 * i for c in range(10)],
            "predicted_share": [0.1] * 10,
        }
        for i in range(len(steps))
    ]
    path = bench.folders[WITH_CLASSES][2]
    make_up(path, bench.configs[path], [0.5] * len(steps), steps=steps, scores=scores, is_done=False)
    return bench


def class_scores(bench: Bench) -> list[dict[str, Any]]:
    entry = json.loads(written(bench.cells(), bench.folder)["json"])["cells"][0]
    scores: list[dict[str, Any]] = entry["per_class_percent"]
    return scores


def test_class_scores_are_those_of_the_steps_that_the_paper_printed(tmp_path: Path) -> None:
    first, second, *later = PRINTED
    bench = class_bench(tmp_path, [first // 2, first, (first + second) // 2, second])
    scores = class_scores(bench)
    assert [at["step"] for at in scores] == list(PRINTED)
    assert scores[0]["ours"]["recall"] == pytest.approx([c + 10 for c in range(10)])
    assert scores[0]["ours"]["precision"] == pytest.approx([2 * c + 10 for c in range(10)])
    assert scores[1]["ours"]["recall"] == pytest.approx([c + 30 for c in range(10)])
    assert [at["ours"] for at in scores[2:]] == [None] * len(later)
    for at, printed in zip(scores, PRINTED.values(), strict=True):
        assert at["paper"] == {"precision": list(printed.precision), "recall": list(printed.recall)}


def test_class_scores_of_an_evaluation_nearby_are_taken_and_of_one_further_off_not(tmp_path: Path) -> None:
    first, second, *_ = PRINTED
    scores = class_scores(class_bench(tmp_path, [int(first * 1.04), int(second * 0.94)]))
    assert scores[0]["ours"] is not None
    assert scores[1]["ours"] is None


def test_class_scores_in_markdown_and_html_are_a_row_a_class_with_a_dash_where_the_run_has_not_got(
    tmp_path: Path,
) -> None:
    first, *later = PRINTED
    bench = class_bench(tmp_path, [first])
    texts = written(bench.cells(), tmp_path)
    for rows in (markdown_rows(texts["md"])[2:], Tables(texts["html"]).rows[3:]):
        assert rows[0] == ["class", *(f"step {step:,}" for step in PRINTED)]
        assert [line[0] for line in rows[1:]] == [str(c) for c in range(1, 11)]
        third = rows[3]
        printed = [f"({scores.precision[2]} / {scores.recall[2]})" for scores in PRINTED.values()]
        assert third[1] == f"4.0 / 2.0 {printed[0]}"
        assert third[2:] == [f"– {text}" for text in printed[1:]]
        assert len(third) == 2 + len(later)


def test_a_cell_without_runs_has_no_class_scores(tmp_path: Path) -> None:
    assert class_scores(Bench(tmp_path, [WITH_CLASSES], seeds=[1])) is None


@pytest.mark.parametrize("damage", ["", "{\n{}\n", '{"step": 30000}\n', "[]\n"])
def test_a_kept_run_whose_metrics_are_damaged_does_not_hide_the_others(tmp_path: Path, damage: str) -> None:
    bench = Bench(tmp_path, [WITH_CLASSES, RECIPE], seeds=[1], iterations=20)
    for path, config in bench.configs.items():
        make_up(path, config, [0.5], scores=[HALF])
    bench.run(lambda share: None)
    (bench.folders[WITH_CLASSES][1] / "metrics.jsonl").write_text(damage)
    assert len(json.loads(written(bench.cells(), tmp_path)["json"])["cells"]) == 2


def widest(name: str) -> Cell:
    """Figures that take as much room as figures can: accuracies with an sd, six-figure speeds, hours."""
    results = tuple(
        RunResult(
            seed,
            2**20,
            2**20,
            True,
            dict.fromkeys(headline_figures(), figure),
            minutes=1234.5,
            images_per_second=123_456.0,
            device="",
            commit="",
            is_short=False,
            schedule="fast",
        )
        for seed, figure in ((1, 0.85), (2, 0.55))
    )
    return Cell(name, RECIPES[name], {1: Path("a"), 2: Path("b")}, results, {})


def printed(lines: Iterable[str | Table], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_has_below_the_tables_what_is_missing_and_each_reason_as_it_is(bench: Bench) -> None:
    reason = "no [data] in /a/b"
    cells = [*bench.cells(), failed(reason, "digits/cadr-g20/fixmatch+cadr")]
    lines = printed(shown(cells, 200), 200).splitlines()
    assert lines[-6:-2] == [
        f"{OTHER}: seed 1 not started, seed 2 at step 4, seed 3 not started",
        "digits/cadr-g20/fixmatch+cadr: seed 1 failed",
        f"failed: digits/cadr-g20/fixmatch+cadr: {reason}",
        AFTER_A_FAILURE,
    ]
    assert [line.split()[0] for line in lines if " of " in line and line.startswith("  ")] == [
        "fixmatch+prg",
        "fixmatch+cadr",
    ]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("table", TITLES)
def test_no_column_is_lost_or_cut_however_narrow_the_terminal(table: str, width: int) -> None:
    cells = [widest(name) for name in RECIPES if name.startswith(f"{table}/")]
    text = printed(terminal_tables(TITLES[table], cells, width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    rows = [row(cell) for cell in cells]
    kept = {
        column: heading
        for column, heading in headings().items()
        if column != "setting" and (not column.startswith("paper_") or any(line[column] != "–" for line in rows))
    }
    for heading in kept.values():
        assert text.count(heading) >= [*kept.values()].count(heading)
    for setting, group in groupby(rows, key=lambda line: line["setting"]):
        assert setting in text
        for line in group:
            first, *more = [found for found in text.splitlines() if found.split()[:1] == [line["method"]]]
            values = " ".join(" ".join(found.split()) for found in (first, *more))
            assert all(line[column] in values for column in kept)


def test_a_wide_terminal_has_one_table_and_a_narrow_one_two() -> None:
    cells = [widest(name) for name in RECIPES if name.startswith("table1/")]
    assert [len(terminal_tables("x", cells, width)) for width in (80, 200)] == [2, 1]
