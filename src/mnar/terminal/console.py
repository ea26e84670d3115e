"""The console that the commands print to, a progress bar, and error messages with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

REMEDIES = {
    errno.ENOSPC: "free some space, then repeat the command",
    errno.EROFS: "choose a folder on a writable disk",
    errno.EACCES: "change the permissions, or choose another path",
    errno.EEXIST: "the path is not a folder; choose another path",
    errno.ENOTDIR: "a part of the path is not a folder; choose another path",
    errno.EISDIR: "the path is a folder; give a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}
TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # characters that turn the direction of writing


class Terminal(Console):
    """A console that a closed pipe does not stop, and that shows the control codes in a user's names as signs."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, so that a run continues when the reader of its output ends (`mnar train | head`)."""
        self.quiet = True

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """Return a text in which a sign replaces the characters that could change what the terminal shows."""
    return "".join(
        "\ufffd" if (category(character) == "Cc" and character not in "\t\n") or character in TURNS else character
        for character in text
    )


console = Terminal(emoji=False)  # a class called c:key: is no emoji
errors = Terminal(stderr=True, emoji=False)


@contextmanager
def bar(what: str = "reading", total: float | None = 1.0) -> Iterator[Callable[..., None]]:
    """Show a progress bar. The yielded function updates it with rich's options, e.g. `completed=0.5`.

    The bar appears at the first update.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    task = progress.add_task(what, total=total)

    def show(**changes: Any) -> None:
        progress.start()  # only now, so that an immediate error shows no bar
        progress.update(task, **changes)

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def reading_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for stages. Call the yielded function with a stage's name, the items done and their total."""
    with bar(total=None) as update:
        update()
        yield lambda what, done, total: update(description=what, completed=done, total=total)


def say(text: str) -> None:
    """Print a sentence, in which nothing is markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def error_message(error: Exception) -> str:
    """Return the message of an error, with a remedy added to common errors of the operating system."""
    if isinstance(error, OSError) and error.errno in REMEDIES:
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}; {REMEDIES[error.errno]}"
    return str(error)
