"""The table of members on the terminal, and the lines in a file."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from mnar.own_data.portfolio.member import Fitted, Member, Samples
from mnar.own_data.portfolio.members import members_for
from mnar.own_data.portfolio.portfolio import Choice, TriedMember, fit_portfolio
from mnar.own_data.portfolio.scores import Score
from mnar.terminal import portfolio_table
from mnar.terminal.portfolio_table import PortfolioTable, choice_table, percent
from tests.support.half_labeled import clouds


def not_fitted(samples: Samples) -> Fitted:
    raise ValueError("no [bold] matrix")


MEMBERS = (Member("one", "the first", not_fitted), Member("two", "the second", not_fitted, uses_pool=True))
ONE = TriedMember("one", "the first", False, 0.0, Score(0.83, 0.758, 0.902), None, 1.26)
TWO = TriedMember("two", "the second", True, 0.0, None, None, 0.0, "left out: no [bold] matrix")


def console_of(*, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=is_terminal, color_system=None)


def text_in(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def show(console: Console) -> None:
    with PortfolioTable(console) as display:
        display.started(MEMBERS, None, 2.5)  # type: ignore[arg-type]
        display.fold_done("one", 1, 10)
        display.fold_done("one", 2, 10)
        display.tried(ONE)
        display.tried(TWO)
        display.note("a [note]")
        display.warning("run/[x].npz is damaged")


def test_in_a_file_each_member_has_one_line_and_nothing_is_taken_for_markup() -> None:
    console = console_of()
    show(console)
    first, *rest = text_in(console).splitlines()
    assert first == "trying 2 members by cross-validation, for at most 2.5 minutes (--minutes N)"
    assert rest == [
        "one: balanced accuracy 83.0 (75.8 to 90.2)  1.3 s",
        "two: balanced accuracy –  left out: no [bold] matrix",
        "a [note]",
        "warning: run/[x].npz is damaged",
    ]


def test_on_a_terminal_the_table_has_a_row_per_member_with_its_state() -> None:
    console = console_of(is_terminal=True)
    show(console)
    shown = text_in(console)
    last = shown[shown.rindex("uses the pool") :]
    (one,) = [line for line in last.splitlines() if line.startswith(" one")]
    (two,) = [line for line in last.splitlines() if line.startswith(" two")]
    assert one.split() == ["one", "no", "83.0", "(75.8", "to", "90.2)", "1.3", "s"]
    assert two.split(maxsplit=3)[:3] == ["two", "yes", "–"]
    assert "left out: no [bold] matrix" in two


def test_the_time_left_is_the_mean_time_of_a_fold_times_the_folds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 130.0])
    monkeypatch.setattr(portfolio_table.time, "monotonic", lambda: next(times))
    display = PortfolioTable(console_of())
    display.states = {"one": "waiting"}
    display.fold_done("one", 1, 10)
    assert display.states["one"] == "fit 1 of 10"
    display.fold_done("one", 2, 10)
    assert display.states["one"] == f"fit 2 of 10, about {portfolio_table.in_words(30.0 * 8)} left"


@pytest.fixture(scope="module")
def choice() -> Choice:
    samples = clouds((12, 8, 5))
    fitted = fit_portfolio(samples, (*members_for(samples, fast=True), Member("broken", "fails", not_fitted)))
    assert fitted.choice is not None
    return fitted.choice


def test_the_table_of_the_choice_has_scores_weights_and_remarks(choice: Choice) -> None:
    console = console_of()
    console.print(choice_table(choice))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text_in(console).splitlines() if "│" in line]
    total = sum(member.weight for member in choice.members)
    rows: dict[str, list[str]] = {name: rest for name, *rest in cells if name}
    assert list(rows) == ["kernel", "graph", "broken"]
    for member in choice.members[:2]:
        weight = f"{100 * member.weight / total:.0f}" if member.weight else "–"
        assert rows[member.name][1:3] == [percent(member.balanced_accuracy), weight]
        assert rows[member.name][0] == ("yes" if member.uses_pool else "no")
    assert rows["broken"][1:3] == ["–", "–"]
    remark = " ".join(cell[-1] for cell in cells[-3:] if cell[0] in ("broken", ""))
    assert "left out: could not be fitted (no [bold] matrix)" in remark


@pytest.mark.parametrize(
    ("score", "text"),
    [(None, "–"), (Score(1.0, 0.875, 1.0), "100.0 (87.5 to 100.0)"), (Score(0.0, 0.0, 0.05), "0.0 (0.0 to 5.0)")],
)
def test_a_score_is_written_in_percent_with_its_interval(score: Any, text: str) -> None:
    assert percent(score) == text
