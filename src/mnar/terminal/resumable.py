"""The progress of a command that writes a file block by block, and that a signal stops after a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mnar.run.stopping import stopping_on_signals
from mnar.terminal.console import bar
from mnar.training.trainer import Interrupted


@contextmanager
def resumable_bar(what: str, out: Path) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar. Call the yielded function with the finished rows and their total, if it is known.

    After Ctrl-C or SIGTERM, the function raises an error that says how to go on. A second Ctrl-C stops at once.
    """
    with stopping_on_signals() as stop, bar(what, total=None) as update:

        def show(done: int, total: int | None) -> None:
            update(completed=done, total=total)
            if stop.is_set and done != total:
                raise Interrupted(
                    f"stopped after {done:,} rows, which are saved; repeat the command to go on with {out}"
                )

        yield show
