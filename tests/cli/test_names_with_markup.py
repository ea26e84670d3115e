"""Columns, classes, files and folders whose names look like rich's markup: the terminal shows them as they are."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from rich.progress import Progress

from mnar.terminal.console import bar, console
from tests.support.command import Mnar

CLASSES = ("[/]", "[red]x", "[bold]")
COLUMNS = ("[/]", "[red]x", "[link=a]")
NETWORK = ("--learner", "pseudo_label", "--iterations", 2, "--set", "engine.device=cpu")


@pytest.fixture
def table() -> Path:
    draw, path = random.Random(0), Path("data[/]") / "[red]x.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "[y]"])
        for row in range(300):
            kind = row % 3
            numbers = [f"{draw.gauss(2 * kind, 1):.3f}" for _ in COLUMNS]
            writer.writerow([*numbers, CLASSES[kind] if row < 200 else ""])
    return path


def test_every_command_shows_names_with_markup_as_they_are(mnar: Mnar, table: Path) -> None:
    run = Path("[bold]run[/]")
    inspected = mnar("inspect", table, "--label", "[y]", "--out", "i[/].json")
    trained = mnar("train", table, "--label", "[y]", *NETWORK, "--out", run)
    predicted = mnar("predict", run, table, "--out", "p[red].csv")
    relabeled = mnar("relabel", run, "--out", "r[red].csv")
    chosen = mnar("next", run, "--budget", 5, "--out", "n[red].csv")
    scored = mnar("eval", run)
    reported = mnar("report", run, "--out", "x[/].html")
    for outcome in (inspected, trained, predicted, relabeled, chosen, scored, reported):
        assert outcome.code == 0, outcome.errors
    for outcome in (inspected, predicted, relabeled, chosen, scored):
        assert all(name in outcome.output for name in CLASSES)
    assert "i[/].json" in inspected.output
    assert "[bold]run[/]/predictions.csv" in trained.output
    assert "p[red].csv" in predicted.output
    assert "r[red].csv" in relabeled.output
    assert "n[red].csv" in chosen.output
    assert "[bold]run[/]" in scored.output
    assert "x[/].html" in reported.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("inspect", "[/]none"), "[/]none"),
        (("train", "--dataset", "digits", "--set", "train.lr='[/]'"), "'[/]'"),
        (("train", "--dataset", "digits", "--set", "guidance.[/]=3"), "'[/]'"),
        (("train", "--dataset", "digits", "--learner", "[/red]"), "'[/red]'"),
        (("train", "--resume", "[/]"), "[/]"),
        (("predict", "[bold]", "x.csv"), "[bold]"),
        (("report", "[/]"), "[/]"),
        (("bench", "[/]"), "[/]"),
        (("bench", "--show", "--out", "[/]"), "[/]"),
        (("list", "[/]"), "'[/]'"),
        (("[/]",), "'[/]'"),
    ],
)
def test_an_error_shows_a_name_with_markup_as_it_is(mnar: Mnar, arguments: tuple[str, ...], named: str) -> None:
    outcome = mnar(*arguments)
    assert outcome.code != 0
    assert named in outcome.errors
    assert "Traceback" not in outcome.errors


def test_a_progress_bar_shows_a_name_with_markup_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def note(self: Progress) -> None:
        with console.capture() as captured:
            console.print(self.get_renderable())
        shown.append(captured.get())

    monkeypatch.setattr(Progress, "start", note)
    with bar("reading data[/]/[red]x.csv") as show:
        show(completed=0.5)
    assert "reading data[/]/[red]x.csv" in shown[0]


@pytest.mark.parametrize("line_break", ["\n", "\v", "\x85", "\u2028"])
def test_an_error_takes_one_line_even_if_a_column_has_a_line_break_in_its_name(mnar: Mnar, line_break: str) -> None:
    Path("own.csv").write_text(f'"a{line_break}b",c\n1,2\n', encoding="utf-8")
    outcome = mnar("inspect", "own.csv", "--label", "kind")
    assert outcome.code == 1
    assert len(outcome.errors.splitlines()) == 1
    assert "its columns are a b, c" in outcome.errors
