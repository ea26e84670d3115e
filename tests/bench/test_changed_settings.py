"""Settings in which runs differ from their recipe are part of the row's name, and the paper's figure is left out."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mnar.bench import Bench, Cell, write_results
from mnar.bench.changed_settings import changed_settings, over_seeds
from mnar.bench.rows import ABOUT_CHANGES, how_to_read, notes, row
from mnar.recipes import RECIPES, configure
from mnar.terminal.bench_table import shown
from tests.bench.benches import ABSENT, RECIPE, make_up

WITH_FIGURE, WITH_CLASSES = "table1/cifar10-cadr-g20/fixmatch+prg", "precision-recall/cifar10-cadr-g50/fixmatch"


@pytest.mark.parametrize("schedule", ["published", "fast"])
@pytest.mark.parametrize("recipe", [*RECIPES][::10])
def test_a_recipe_with_any_schedule_and_length_has_no_changed_setting(recipe: str, schedule: str) -> None:
    config = configure(recipe=recipe, schedule=schedule, iterations=500, seed=7)
    assert changed_settings(recipe, config) == ()


@pytest.mark.parametrize(
    "unnamed",
    ["engine.device=cpu", "train.eval_every=3", "train.save_every=3", "train.log_every=3", "train.iterations=77"],
)
def test_options_that_do_not_change_the_method_are_not_named(unnamed: str) -> None:
    assert changed_settings(RECIPE, configure(recipe=RECIPE, settings=[unnamed])) == ()


@pytest.mark.parametrize("schedule", ["published", "fast"])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["guidance.name=prg"], ["guidance.name=prg"]),
        (["guidance.name=prg", "guidance.window=128"], ["guidance.name=prg"]),  # 128 is the default
        (["guidance.name=prg", "guidance.window=64"], ["guidance.name=prg", "guidance.window=64"]),
        (["guidance.name=none"], []),  # as in the recipe
        (["learner.name=mixmatch"], ["learner.name=mixmatch"]),  # MixMatch has other training options
        (
            ["guidance.name=distribution_alignment+prg", "guidance.preceded_by.window=7"],
            ["guidance.name=distribution_alignment+prg", "guidance.preceded_by.window=7"],
        ),
        (
            ["protocol.name=darp", "protocol.gamma_l=10", "protocol.gamma_u=5"],
            ["protocol.name=darp", "protocol.gamma_l=10.0", "protocol.gamma_u=5.0"],
        ),
        (["protocol.gamma=50"], ["protocol.gamma=50.0"]),
        (["train.optimizer=adam"], ["train.optimizer=adam"]),
        (["train.batch_labeled=16"], ["train.batch_labeled=16"]),  # the unlabelled batch follows
        (["train.batch_stages=[0.5, 1]"], ["train.batch_stages=[0.5, 1.0]"]),
    ],
    ids=lambda settings: " ".join(settings),
)
def test_the_recipe_with_the_changed_settings_is_the_run(given: list[str], named: list[str], schedule: str) -> None:
    config = configure(recipe=RECIPE, schedule=schedule, iterations=500, settings=given)
    assert list(changed_settings(RECIPE, config)) == named
    assert configure(recipe=RECIPE, schedule=schedule, iterations=500, settings=named) == config


def test_a_run_with_a_schedule_that_this_version_does_not_have_is_compared_with_the_recipe() -> None:
    config = replace(configure(recipe=RECIPE, settings=["train.lr=0.5"]), schedule="of another version")
    assert changed_settings(RECIPE, config) == ("train.lr=0.5",)


def test_a_setting_that_only_some_runs_have_names_their_seeds() -> None:
    changes = {1: ("train.lr=1.0",), 2: ("train.lr=1.0", "guidance.name=prg"), 3: ("train.lr=1.0",)}
    assert over_seeds(changes) == ("train.lr=1.0", "guidance.name=prg in seed 2")


def finished(folder: Path, *cells: str, settings: tuple[str, ...] = (), seeds: tuple[int, ...] = (1,)) -> Bench:
    bench = Bench(folder, cells, seeds=seeds, iterations=20, settings=settings)
    for path, config in bench.configs.items():
        make_up(path, config, [0.5], scores=[dict.fromkeys(("recall", "precision", "predicted_share"), [0.5] * 10)])
    return bench


def in_terminal(cells: list[Cell], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for line in shown(cells, width):
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_format_names_the_changed_setting_and_leaves_the_papers_figure_out(tmp_path: Path) -> None:
    printed, method = "94.04 ± 0.18", "fixmatch+prg (guidance.name=cadr)"
    cells = finished(tmp_path, WITH_FIGURE, settings=("guidance.name=cadr", "train.eval_every=10")).cells()
    write_results(cells, tmp_path)
    for text in (
        in_terminal(cells, 200),
        (tmp_path / "results.md").read_text(),
        (tmp_path / "results.html").read_text(),
    ):
        assert method in text
        assert printed not in text
    (entry,) = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert (entry["name"], entry["recipe"]) == (f"{WITH_FIGURE} (guidance.name=cadr)", WITH_FIGURE)
    assert entry["changed_settings"] == ["guidance.name=cadr"]
    assert {*entry["paper_percent"].values()} == {None}
    (line,) = csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text()))
    assert (line["recipe"], line["changed_settings"], line["paper_accuracy"]) == (WITH_FIGURE, "guidance.name=cadr", "")
    assert ABOUT_CHANGES in how_to_read(cells)


def test_a_bench_without_changed_settings_keeps_names_and_the_papers_figures(tmp_path: Path) -> None:
    cells = finished(tmp_path, WITH_FIGURE, settings=("train.eval_every=10", "engine.device=cpu")).cells()
    write_results(cells, tmp_path)
    assert (row(cells[0])["method"], row(cells[0])["paper_accuracy"]) == ("fixmatch+prg", "94.04 ± 0.18")
    (entry,) = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert (entry["name"], entry["changed_settings"]) == (WITH_FIGURE, [])
    assert entry["paper_percent"]["accuracy"] == 94.04
    assert ABOUT_CHANGES not in how_to_read(cells)


def test_notes_and_class_scores_of_the_paper_are_left_out_as_well(tmp_path: Path) -> None:
    noted = next(name for name, recipe in RECIPES.items() if recipe.note)
    for settings, are_there in (((), True), (("train.lr=0.5",), False)):
        folder = tmp_path / "".join(settings)
        cells = finished(folder, noted, WITH_CLASSES, settings=settings).cells()
        write_results(cells, folder)
        of_classes = json.loads((folder / "results.json").read_text())["cells"][-1]["per_class_percent"]
        assert bool(notes(cells)) is are_there
        assert bool(of_classes) is are_there


def test_show_finds_the_changed_settings_in_the_runs(tmp_path: Path) -> None:
    finished(tmp_path, WITH_FIGURE, settings=("guidance.alpha=3", "train.eval_every=10"), seeds=(1, 2))
    finished(tmp_path, RECIPE, seeds=(1,))
    cells = {cell.name: cell for cell in Bench.existing(tmp_path).cells()}
    assert {name: cell.changes for name, cell in cells.items()} == {WITH_FIGURE: ("guidance.alpha=3.0",), RECIPE: ()}
    assert row(cells[WITH_FIGURE])["paper_accuracy"] == "–"


def test_a_seed_that_has_not_started_does_not_hide_the_changed_settings_of_the_others(tmp_path: Path) -> None:
    finished(tmp_path, WITH_FIGURE, settings=("guidance.alpha=3", "train.eval_every=10"), seeds=(1,))
    (cell,) = Bench.existing(tmp_path, seeds=(1, 2)).cells()
    assert cell.changes == ("guidance.alpha=3.0",)
    assert cell.missing == "seed 2 not started"


def test_a_cell_that_cannot_have_the_settings_is_named_with_them(tmp_path: Path) -> None:
    settings = ("guidance.alpha=3", "train.eval_every=10")
    refused, trained = Bench(tmp_path, [ABSENT, WITH_FIGURE], seeds=(1,), settings=settings).cells()
    assert refused.failures[1].startswith("unknown option of guidance none: 'alpha'")
    assert refused.method == "fixmatch (guidance.alpha=3)"
    assert trained.method == "fixmatch+prg (guidance.alpha=3.0)"
    assert row(refused)["paper_accuracy"] == row(trained)["paper_accuracy"] == "–"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_long_name_takes_several_lines_of_the_terminal_and_is_not_cut(width: int, tmp_path: Path) -> None:
    settings = ("guidance.name=distribution_alignment+prg", "guidance.alpha=3", "train.lr=0.5", "train.momentum=0.5")
    cells = finished(tmp_path, RECIPE, WITH_FIGURE, settings=settings).cells()
    text = in_terminal(cells, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for setting in ("guidance.alpha=3.0", "train.lr=0.5", "train.momentum=0.5"):
        assert setting in text
