"""`Reader`: what the fuzz needs to know of something that reads a user's input."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mnar.own_data.portfolio_run
import mnar.own_data.train
import mnar.report
import mnar.run.runner


class Reader(ABC):
    """Writes valid inputs into the folder `originals` once, and then changed inputs into folders of their own."""

    name: str
    first_commands: tuple[tuple[str, ...], ...] = ()  # valid commands in `originals`, by which the modules are imported

    def __init__(self, originals: Path) -> None:
        self.originals = originals

    @abstractmethod
    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        """Write a changed input into an empty folder, and return the arguments of the command that reads it there."""

    @abstractmethod
    def stop_early(self) -> None:
        """Change this process so that the command reads its input and soon ends. Most inputs are tried in this way."""

    def asks_for_much_work(self, command: Sequence[str]) -> bool:
        """Whether the command may take more than 10 s for a good reason. Then only its reading is tried."""
        return False

    def difference(self, folder: Path) -> str | None:
        """Return in which way the result of a command that worked is wrong; None if nothing is known to be wrong."""
        return None


def end_the_command(*arguments: Any, **options: Any) -> Any:
    raise SystemExit(0)


def stop_before_estimating() -> None:
    mnar.own_data.train.inspect_data = end_the_command


def stop_before_training() -> None:
    mnar.run.runner.train = end_the_command


def fit_quick_members() -> None:
    """All members of a portfolio together take more than the 10 s of the rule, also on a table of few rows."""
    members_for = mnar.own_data.portfolio_run.members_for

    def quick_members_for(samples: Any, **options: Any) -> Any:
        return members_for(samples, **options | {"fast": not options["every"]})

    mnar.own_data.portfolio_run.members_for = quick_members_for


def draw_no_report() -> None:
    mnar.report.write_run_report = mnar.own_data.portfolio_run.write_own_data_report = lambda *_, **__: None
