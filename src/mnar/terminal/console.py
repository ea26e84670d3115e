"""What the commands print on: the console, a progress bar, and errors in words."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

REMEDIES = {
    errno.ENOSPC: "free some space, then repeat the command",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EEXIST: "it is no folder; choose another",
    errno.ENOTDIR: "a part of it is no folder; choose another",
    errno.EISDIR: "it is a folder; name a file",
}


class Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read the output has gone (`mnar train | head`): a run goes on without them."""
        self.quiet = True


console = Terminal()
errors = Console(stderr=True)


@contextmanager
def bar(what: str = "reading", total: float | None = 1.0) -> Iterator[Callable[..., None]]:
    """Shows what is being done, and how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    task = progress.add_task(what, total=total)

    def show(**changes: Any) -> None:
        progress.start()  # not before: what is refused at once has not begun
        progress.update(task, **changes)

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def reading_bar() -> Iterator[Callable[[str, int, int], None]]:
    with bar(total=None) as update:
        update()
        yield lambda what, done, total: update(description=what, completed=done, total=total)


def error_message(error: Exception) -> str:
    """With a remedy where the system has none to offer."""
    if isinstance(error, OSError) and error.errno in REMEDIES:
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}; {REMEDIES[error.errno]}"
    return str(error)
