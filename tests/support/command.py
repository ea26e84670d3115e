"""Run `mnar` in this process or in its own process, and stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing import active_children
from typing import NamedTuple

import pytest

from mnar import cli
from tests.support import tiny


class Outcome(NamedTuple):
    code: int
    output: str
    errors: str


Mnar = Callable[..., Outcome]


def as_options(settings: Iterable[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


TINY = as_options(tiny.TINY)


def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Outcome:
    """Run `mnar` with these arguments in this process; a new process takes seconds to start."""
    monkeypatch.setattr(sys, "argv", ["mnar", *map(str, arguments)])
    capsys.readouterr()
    try:
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    return Outcome(code, *capsys.readouterr())


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start `mnar` with these arguments in its own process."""
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",  # two threads on two busy cores wait for each other
    }
    return subprocess.Popen(
        [sys.executable, "-m", "mnar", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for(condition: Callable[[], object], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition is still false after {seconds} seconds"
        time.sleep(0.02)


def stop_as_kill_does() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop_as_ctrl_c_does() -> None:
    for process in (os.getpid(), *(worker.pid for worker in active_children())):
        assert process is not None
        os.kill(process, signal.SIGINT)


def failing_with(error: BaseException) -> Callable[..., None]:
    """A function that takes any arguments and raises `error`."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail
