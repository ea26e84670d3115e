from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest
import torch

from mnar.bench import child_process
from mnar.bench.child_process import ChildProcess, ProcessKilled
from mnar.training.meters import Diverged
from tests.support.command import wait_for

Start = Callable[..., ChildProcess]


@pytest.fixture(params=["default", "spawn"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a process with the default method of this machine, or with the method for machines with a GPU."""
    if request.param == "spawn":
        monkeypatch.setattr(child_process, "_context", lambda: get_context("spawn"))
    return ChildProcess


def ended(process: ChildProcess) -> Exception | None:
    """Wait for the end of a process; return its error."""
    wait_for(process.has_ended)
    assert active_children() == []
    return process.error


class TwoArguments(Exception):
    """An error that pickle can write but cannot read."""

    def __init__(self, name: str, value: int) -> None:
        super().__init__(f"{name} is {value}")


def write_process(path: Path) -> None:
    path.write_text(str(os.getpid()))


def write_settings_of_malloc(path: Path) -> None:
    path.write_text(os.environ["GLIBC_TUNABLES"])


def fail(error: Exception) -> None:
    raise error


def fail_with_a_long_text(length: int) -> None:
    raise RuntimeError("x" * length)


def fail_with_two_arguments() -> None:
    raise TwoArguments("alpha", -1)


def kill_this_process(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def wait_for_sigterm(path: Path) -> None:
    """Count the signals that arrive, and end on SIGTERM."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: received.append(number))
    path.touch()
    while signal.SIGTERM not in received:
        time.sleep(0.05)
    path.write_text(str([signal.Signals(number).name for number in received]))


def test_every_function_runs_in_a_process_of_its_own(start: Start, tmp_path: Path) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        assert ended(start(write_process, path)) is None
    assert len({str(os.getpid()), *(path.read_text() for path in paths)}) == 3


def test_a_process_reads_the_settings_of_malloc_and_the_environment_of_the_parent_stays(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    before = dict(os.environ)
    assert ended(start(write_settings_of_malloc, tmp_path / "read")) is None
    assert (tmp_path / "read").read_text() == child_process.MALLOC
    assert dict(os.environ) == before


def test_settings_of_malloc_that_the_user_chose_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "_context", lambda: get_context("spawn"))
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert ended(ChildProcess(write_settings_of_malloc, tmp_path / "read")) is None
    assert (tmp_path / "read").read_text() == os.environ["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1"


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("class 3 has no sample"), ValueError(), Diverged("a loss is not a number"), MemoryError()),
        *(KeyError("name"), FileNotFoundError(2, "no such file", "a.csv")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_the_parent_with_its_type_text_and_traceback(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    received = ended(ChildProcess(fail, error))
    assert type(received) is type(error)
    assert str(received) == str(error)
    (note,) = received.__notes__
    assert note.startswith("Traceback (most recent call last):\n")
    assert ", in fail\n" in note
    assert capfd.readouterr().err == "", "the parent decides where the error is shown"


def test_a_long_error_does_not_block_the_process(start: Start) -> None:
    """A pipe holds 64 KiB."""
    assert str(ended(start(fail_with_a_long_text, 200_000))) == "x" * 200_000


def test_an_error_that_pickle_cannot_read_becomes_a_runtime_error_with_the_same_text() -> None:
    received = ended(ChildProcess(fail_with_two_arguments))
    assert type(received) is RuntimeError
    assert str(received) == "TwoArguments: alpha is -1"
    assert ", in fail_with_two_arguments\n" in received.__notes__[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 1])
def test_a_process_that_a_signal_ends_has_an_error_with_the_signal_and_a_remedy(number: int) -> None:
    received = ended(ChildProcess(kill_this_process, number))
    assert isinstance(received, ProcessKilled)
    assert f"killed by signal {int(number)}, perhaps because memory ran out; choose a smaller batch" in str(received)


def test_a_process_that_ends_without_a_report_has_an_error_with_its_exit_code(start: Start) -> None:
    received = ended(start(sys.exit, 7))
    assert not isinstance(received, ProcessKilled)
    assert "ended with exit code 7" in str(received)


def test_terminate_sends_sigterm_and_ctrl_c_does_not_reach_the_process(start: Start, tmp_path: Path) -> None:
    process = start(wait_for_sigterm, tmp_path / "received")
    wait_for((tmp_path / "received").exists)
    assert process.process.pid is not None
    os.kill(process.process.pid, signal.SIGINT)
    process.terminate()
    assert ended(process) is None
    assert (tmp_path / "received").read_text() == "['SIGTERM']"


@pytest.mark.parametrize(
    ("platform", "has_gpu", "method"),
    [("linux", False, "forkserver"), ("linux", True, "spawn"), ("darwin", False, "spawn")],
)
def test_processes_are_forks_of_a_server_only_on_linux_without_a_gpu(
    platform: str, has_gpu: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert child_process._context().get_start_method() == method
