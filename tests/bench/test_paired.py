"""Paired differences: their mean, standard deviation and interval, their reference, and where they are shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats  # type: ignore[import-untyped]

from mnar.bench import Cell, RunResult, write_results
from mnar.bench.difference_table import difference_table
from mnar.bench.paired import Difference, comparisons
from mnar.recipes import RECIPES
from mnar.terminal.bench_table import difference_tables, shown

FIXMATCH, PRG, CADR = (f"digits/cadr-g20/{method}" for method in ("fixmatch", "fixmatch+prg", "fixmatch+cadr"))
ELSEWHERE = "digits/own-n40-10/fixmatch+prg"  # another setting


def cell(name: str, accuracies: dict[int, float], *, running: tuple[int, ...] = ()) -> Cell:
    """A cell with these accuracies by seed. GM is half the accuracy."""
    results = tuple(
        RunResult(
            seed=seed,
            step=10,
            iterations=10,
            is_done=seed not in running,
            headline={"accuracy_median_last_20": accuracy, "geometric_mean": accuracy / 2},
            minutes=1.0,
            images_per_second=None,
            device="a machine",
            commit=None,
            is_short=False,
        )
        for seed, accuracy in accuracies.items()
    )
    return Cell(name, RECIPES[name], {seed: Path("nowhere") for seed in accuracies}, results, {})


BASE, BETTER = {1: 0.5, 2: 0.7, 3: 0.6}, {1: 0.55, 2: 0.76, 3: 0.69}
CELLS = [cell(PRG, BETTER), cell(FIXMATCH, BASE), cell(CADR, {1: 0.5, 2: 0.6})]


def test_mean_sd_and_interval_are_those_of_the_one_sample_t_test() -> None:
    values = [0.05, 0.06, 0.09]
    difference = Difference.of(values)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert difference.mean == pytest.approx(sum(values) / 3)
    assert difference.sd == pytest.approx(stats.tstd(values))
    assert difference.points == "+6.7 (+1.5 to +11.8)"


def test_differences_are_paired_by_seed_whatever_the_order_of_the_runs() -> None:
    other_order = cell(PRG, dict(reversed(BETTER.items())))
    for better in (CELLS[0], other_order):
        (compared,) = comparisons([cell(FIXMATCH, BASE), better])
        assert compared.differences["accuracy"].sd == pytest.approx(Difference.of([0.05, 0.06, 0.09]).sd)
        assert compared.differences["geometric_mean"].mean == pytest.approx(0.2 / 6)
        assert sorted(compared.seeds) == [1, 2, 3]


def test_the_reference_is_fixmatch_or_else_the_first_method() -> None:
    def names(cells: list[Cell]) -> list[tuple[str, str]]:
        return [(compared.cell.name, compared.reference.name) for compared in comparisons(cells)]

    assert names(CELLS) == [(PRG, FIXMATCH), (CADR, FIXMATCH)]
    assert names([CELLS[0], CELLS[2]]) == [(CADR, PRG)]


def test_only_seeds_that_both_methods_have_finished_are_compared() -> None:
    unfinished = cell(PRG, {**BETTER, 4: 0.9}, running=(3,))
    (compared,) = comparisons([cell(FIXMATCH, BASE), unfinished])
    assert compared.seeds == (1, 2)
    assert compared.differences["accuracy"].mean == pytest.approx(0.055)


@pytest.mark.parametrize(
    "cells",
    [
        [cell(FIXMATCH, BASE)],
        [cell(FIXMATCH, {1: 0.5}), cell(PRG, BETTER)],
        [cell(FIXMATCH, {1: 0.5, 2: 0.6}), cell(PRG, {3: 0.5, 4: 0.6})],
        [cell(FIXMATCH, BASE), cell(ELSEWHERE, BETTER)],
        [cell(FIXMATCH, {}), cell(PRG, BETTER)],
    ],
    ids=["one method", "one seed", "other seeds", "other settings", "no run"],
)
def test_there_is_no_table_without_two_methods_of_a_setting_and_two_common_seeds(
    cells: list[Cell], tmp_path: Path
) -> None:
    assert difference_table(cells) is None
    assert difference_tables(cells, 80) == []
    write_results(cells, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["paired_differences"] == []
    for kind in ("md", "html"):
        assert "Paired differences" not in (tmp_path / f"results.{kind}").read_text()


def test_the_heading_has_the_number_of_seeds() -> None:
    table, of_two = difference_table(CELLS), difference_table(CELLS[:2])
    assert table is not None
    assert of_two is not None
    assert (table.title, of_two.title) == ("Paired differences over 2 to 3 seeds", "Paired differences over 3 seeds")
    assert [line["n"] for line in table.rows] == ["3", "2"]


def test_every_format_has_the_differences(tmp_path: Path) -> None:
    write_results(CELLS, tmp_path)
    markdown, html = (tmp_path / "results.md").read_text(), (tmp_path / "results.html").read_text()
    console = Console(width=80, file=io.StringIO(), color_system=None)
    for line in shown(CELLS, 80):
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    for text in (markdown, html, console.file.getvalue()):
        assert "Paired differences over 2 to 3 seeds" in text
        assert "+6.7 (+1.5 to +11.8)" in text
    assert "| cadr-g20 | fixmatch+prg | fixmatch | +6.7 (+1.5 to +11.8) | +3.3 (+0.7 to +5.9) | 3 |" in markdown
    entry, _ = json.loads((tmp_path / "results.json").read_text())["paired_differences"]
    assert (entry["name"], entry["reference"], entry["seeds"]) == (PRG, FIXMATCH, [1, 2, 3])
    assert entry["percentage_points"]["accuracy"]["mean"] == pytest.approx(20 / 3)
    assert entry["percentage_points"]["geometric_mean"].keys() == {"mean", "sd", "low", "high"}
