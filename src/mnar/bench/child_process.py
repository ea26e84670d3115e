"""Run a function in a process of its own that reports its error and that ends when its parent process ends."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from traceback import format_exception
from typing import Any

import torch

from mnar.run.stopping import STOPPING_SIGNALS

# Almost every run needs these modules; their imports take 3 s.
LIBRARIES = ["mnar.bench.parallel", "sklearn.datasets", "sklearn.model_selection", "matplotlib.figure", "jinja2"]
# Settings of the malloc of glibc, which a process reads when it starts; other C libraries ignore them. Huge pages (from
# glibc 2.35 on) and memory that stays with the process save page faults and make training on digits about 5 % faster.
MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456"
# A terminal sends Ctrl-C to all processes, and Slurm sends SIGUSR2 to all processes of a job whose time is nearly up.
FOR_THE_PARENT = (signal.SIGINT, signal.SIGUSR2)
PATIENCE = 60  # seconds that a process gets to save its work after its parent was killed


class ProcessKilled(RuntimeError):
    """A signal ended a process, e.g. because the operating system ran out of memory."""


class ChildProcess:
    """A process that calls `function` with `arguments`."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self.error: Exception | None = None
        self.report, sender = Pipe(duplex=False)
        self.process = _context().Process(target=_work, args=(function, arguments, sender))
        # The new process inherits the blocked signals, and `_work` unblocks all but two. This process loses no signal:
        # a signal that arrives in the meantime is handled afterwards.
        resource_tracker.ensure_running()  # before the signals are blocked, because its start unblocks them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING_SIGNALS, *FOR_THE_PARENT})
        try:
            with _default_environment("GLIBC_TUNABLES", MALLOC):
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sender.close()  # the process has a copy

    def has_ended(self) -> bool:
        """Whether the process has ended. From then on, `error` is the error of the function, or None."""
        exit_code = self.process.exitcode  # read before the report, which the process sends before it ends
        with suppress(EOFError, OSError):  # OSError: the process was killed during its report
            if self.error is None and self.report.poll():  # not only at the end: a long report waits for its reader
                self.error, trace = self.report.recv()
                self.error.add_note(trace)
        if exit_code and self.error is None:
            self.error = _error_without_report(exit_code)
        return exit_code is not None

    def terminate(self) -> None:
        """Send SIGTERM. A run saves before it ends."""
        self.process.terminate()


@contextmanager
def _default_environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for the processes that start within the block, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _error_without_report(exit_code: int) -> Exception:
    if exit_code > 0:
        return RuntimeError(f"the process of this run ended with exit code {exit_code}; its output may say why")
    reason = f"the process of this run was killed by signal {-exit_code}, perhaps because memory ran out"
    return ProcessKilled(f"{reason}; choose a smaller batch or fewer processes")


def _context() -> ForkServerContext | SpawnContext:
    """How a process starts. Never as a fork of this process, because a fork can hang once torch's threads have run.

    The fork server is a process that imports LIBRARIES once and never trains. A fork of it starts 4 s sooner than a new
    interpreter. With a GPU, each process is a new interpreter: CUDA fails in a fork of a process that has used CUDA,
    even if only an import has used it.
    """
    if sys.platform != "linux" or torch.cuda.is_available():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def _work(function: Callable[..., None], arguments: tuple[Any, ...], sender: Connection) -> None:
    """Call the function and send its error, if any, with the traceback: the main function of the process."""
    # Only the parent reacts to these signals, and sends SIGTERM to this process.
    signal.pthread_sigmask(signal.SIG_SETMASK, FOR_THE_PARENT)
    threading.Thread(target=_end_with_parent, args=(parent_process(),), daemon=True).start()
    try:
        function(*arguments)
    except Exception as error:
        with suppress(BrokenPipeError):  # the parent was killed
            sender.send((_picklable(error), "".join(format_exception(error))))


def _end_with_parent(parent: BaseProcess) -> None:
    parent.join()
    for _ in range(PATIENCE):
        os.kill(os.getpid(), signal.SIGTERM)  # a run saves before it ends
        time.sleep(1)
    os._exit(1)


def _picklable(error: Exception) -> Exception:
    """The error itself, or a `RuntimeError` with its text if the error cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # e.g. a constructor with more arguments than the message
        return RuntimeError(f"{type(error).__name__}: {error}")
