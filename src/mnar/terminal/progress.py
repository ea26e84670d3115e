"""Show the progress of a run on the terminal: a progress bar, a line about pseudo-labels, and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mnar.config import PUBLISHED, RunConfig
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display
from mnar.run.timing import in_words
from mnar.training.metrics import headline_metrics

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 40  # classes that fit into a line
LONG_RUN = 120  # seconds from which on a shorter run is offered


class TerminalDisplay(Display):
    """A `Display` for the terminal, used as a context manager. Into a file it prints one line per evaluation."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[accuracy]}"),
            console=console,
        )
        self.task = self.bar.add_task("", total=None, rate="", accuracy="")
        self.health = Text("")
        self.iterations = 0
        self.test_counts: list[int] = []
        self.live = Live(Group(self.bar, self.health), console=console, refresh_per_second=4)

    def __enter__(self) -> TerminalDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None:
        self.iterations = config.train.iterations
        self.test_counts = RunFolder(folder).split()["test"]
        name = f"{config.learner.name} + {config.guidance.full_name} on {config.dataset.name}, seed {config.seed}"
        origin = f", from step {first_step}" if first_step else ""
        schedule = "" if config.schedule == PUBLISHED else f", schedule {config.schedule}"
        self.console.print(f"{name}: {self.iterations:,} steps{schedule}{origin}", highlight=False)
        self.bar.update(self.task, description=config.dataset.name, total=self.iterations, completed=first_step)

    def stepped(self, step: int) -> None:
        self.bar.update(self.task, completed=step)  # needs no value from the device

    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None:
        self.bar.update(self.task, rate=f"{rate:,.0f} img/s")
        self.health = Text(health_line(means, share), style="dim")
        self.live.update(Group(self.bar, self.health))

    def evaluation(self, line: dict[str, Any]) -> None:
        scores = [(metric.title, metric.value(line["test"], self.test_counts)) for metric in headline_metrics()]
        first, *others = [f"{title} {value:.2%}" for title, value in scores if value is not None]
        self.bar.update(self.task, accuracy=f"test {first}")
        if not self.console.is_terminal:
            rate = self.bar.tasks[0].fields["rate"]
            parts = [f"step {line['step']:,}/{self.iterations:,}", f"test {first}", *others, rate, self.health.plain]
            self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def estimate(self, seconds: float) -> None:
        shorter = max(1, round(seconds / 60 / 2))
        hint = f"; --minutes {shorter} for a shorter run" if seconds > LONG_RUN else ""
        self.note(f"about {in_words(seconds)} on this machine{hint}")

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def warning(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)


def health_line(means: dict[str, float], share: Sequence[float]) -> str:
    """Loss, mask rate, pseudo-labels per class, transitions in the window and the share of empty rows, in one line."""
    parts = [f"loss {means['loss']:.3f}"]
    if "mask_rate" in means:
        parts.append(f"mask {means['mask_rate']:.0%}")
    if share:
        parts.append(f"pseudo-labels per class {sparkline(share)}")
    if "guidance/transitions" in means:
        parts.append(f"transitions {means['guidance/transitions']:,.0f}")
    if "guidance/empty_row_share" in means:
        parts.append(f"empty rows {means['guidance/empty_row_share']:.0%}")
    return " · ".join(parts)


def sparkline(values: Sequence[float]) -> str:
    """One bar per class, a dot for a class without any; with many classes, only the number of classes with some."""
    if len(values) > MOST_BARS:
        return f"{sum(value > 0 for value in values)} of {len(values)} classes"
    top = max(values) or 1.0
    return "".join("·" if value == 0 else BARS[round(value / top * (len(BARS) - 1))] for value in values)
