"""Show on the terminal how the portfolio tries its members: one line per member, filled in as results arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from mnar.own_data.portfolio.member import Member
from mnar.own_data.portfolio.portfolio import Choice, TriedMember
from mnar.own_data.portfolio.scores import Score
from mnar.own_data.portfolio_run import PortfolioDisplay
from mnar.run.timing import in_words
from mnar.types import DataSet

WAITING = "waiting"


class PortfolioTable(PortfolioDisplay):
    """A `PortfolioDisplay` for the terminal, used as a context manager. Into a file it prints one line per member."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.members: dict[str, Member] = {}
        self.states: dict[str, str] = {}
        self.scores: dict[str, str] = {}
        self.began: dict[str, float] = {}
        self.live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> PortfolioTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def started(self, members: Sequence[Member], data: DataSet, minutes: float) -> None:
        self.members = {member.name: member for member in members}
        self.states = dict.fromkeys(self.members, WAITING)
        self.note(f"trying {len(members)} members by cross-validation, for at most {minutes:g} minutes (--minutes N)")
        if self.console.is_terminal:
            self.live.start()
            self._update()

    def fold_done(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        began = self.began.setdefault(name, now)
        left = f", about {in_words((now - began) / (done - 1) * (total - done))} left" if 1 < done < total else ""
        self.states[name] = f"fit {done} of {total}{left}"
        self._update()

    def tried(self, member: TriedMember) -> None:
        self.states[member.name] = member.remark or f"{member.seconds:.1f} s"
        self.scores[member.name] = percent(member.balanced_accuracy)
        if self.console.is_terminal:
            self._update()
        else:
            self.note(f"{member.name}: balanced accuracy {self.scores[member.name]}  {self.states[member.name]}")

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def warning(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)

    def _update(self) -> None:
        if not self.live.is_started:
            return
        table = Table("member", "uses the pool", "balanced accuracy %", "time", box=None)
        for name, member in self.members.items():
            uses_pool = "yes" if member.uses_pool else "no"
            table.add_row(name, uses_pool, self.scores.get(name, ""), escape(self.states[name]))
        self.live.update(table)


def choice_table(choice: Choice) -> Table:
    """A table of the members with their scores and weights; the chosen members are marked."""
    total = sum(member.weight for member in choice.members)
    table = Table(title="Members of the portfolio, by cross-validation", title_justify="left")
    table.add_column("member", no_wrap=True)
    table.add_column("pool")
    for heading in ("balanced accuracy %", "weight %"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("seconds")
    for member in choice.members:
        weight = f"{100 * member.weight / total:.0f}" if member.weight else "–"
        uses_pool, time_or_remark = "yes" if member.uses_pool else "no", member.remark or f"{member.seconds:.1f}"
        table.add_row(member.name, uses_pool, percent(member.balanced_accuracy), weight, escape(time_or_remark))
    return table


def percent(score: Score | None) -> str:
    """A score with its 95 % interval, e.g. "83.0 (75.8 to 90.2)"."""
    if score is None:
        return "–"
    return f"{100 * score.value:.1f} ({100 * score.low:.1f} to {100 * score.high:.1f})"
