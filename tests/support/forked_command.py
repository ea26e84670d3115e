"""Run `mnar` in a fork of this process: a fork starts in milliseconds, and its end does not end the tests.

Call these functions in a process that has not trained, because forks of a process that has may hang.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, NamedTuple

from mnar import cli

UNCAUGHT = 70  # the exit code of a command that ended in an exception which `mnar` did not turn into a message

Action = Callable[[], None]


def _nothing() -> None: ...


class Ended(NamedTuple):
    """What is known of a process that has ended."""

    exit_code: int  # negative: the number of the signal that ended the process
    output: str
    errors: str
    memory: int  # the largest number of bytes that were resident


def run_forked(arguments: Sequence[str], folder: Path, before: Action = _nothing, after: Action = _nothing) -> Ended:
    """Run `mnar` with these arguments in `folder`. The new process also calls `before`, and `after` at the end."""
    with _text_file() as output, _text_file() as errors:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os._exit(_exit_code(arguments, folder, before, after))
        _, status, usage = os.wait4(child, 0)
        return Ended(os.waitstatus_to_exitcode(status), _text(output), _text(errors), usage.ru_maxrss * 1024)


def import_like(arguments: Sequence[str], folder: Path, before: Action = _nothing, after: Action = _nothing) -> Ended:
    """Do what `run_forked` does, and import here what the fork has imported, so that later forks start with it."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "modules"

        def note_modules() -> None:
            after()
            file.write_text("\n".join(sys.modules))

        ended = run_forked(arguments, folder, before, note_modules)
        for name in file.read_text().split("\n"):
            with suppress(Exception):  # some names are not those of modules that can be imported
                import_module(name)
    return ended


def _exit_code(arguments: Sequence[str], folder: Path, before: Action, after: Action) -> int:
    try:
        os.chdir(folder)
        before()
        sys.argv = ["mnar", *arguments]
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = UNCAUGHT
    after()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _text_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
