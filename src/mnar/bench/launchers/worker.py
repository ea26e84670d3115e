"""What happens on a worker of a cluster.

The task or job of the cluster only supervises: it starts the same process as the launcher of local processes. So the
results are the same, no two runs share a process, and the training saves and ends when its supervisor is killed.
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType

import mnar
from mnar.atomic_write import write_atomically
from mnar.bench.child_process import ChildProcess
from mnar.bench.parallel import train_one
from mnar.config import RunConfig

TOKEN = ".launcher"
SECONDS_TO_LOOK = 20.0  # a network file system may show a new file late


@dataclass(frozen=True)
class SharedFolder:
    """The folder of a bench, with a random text in a file that every worker must be able to read."""

    folder: Path
    token: str
    version: str

    @classmethod
    def mark(cls, folder: Path) -> SharedFolder:
        """Write the text. `folder` becomes absolute, because workers have other working directories."""
        marked = cls(folder.resolve(), secrets.token_hex(8), mnar.__version__)
        write_atomically(marked.folder / TOKEN, marked.token)
        return marked

    def check(self) -> None:
        """Raise an error if this machine does not see the folder or has another version of the package."""
        machine = platform.node()
        if mnar.__version__ != self.version:
            raise ValueError(
                f"the worker on {machine} has mnar {mnar.__version__}, but the bench was started with mnar "
                f"{self.version}; install the same version on all machines"
            )
        until = time.monotonic() + SECONDS_TO_LOOK
        while not self._is_visible():
            if time.monotonic() > until:
                raise ValueError(
                    f"the worker on {machine} does not share the folder {self.folder} with the machine of the bench; "
                    "choose --out on a file system that all workers share, or choose --launcher local"
                )
            time.sleep(0.5)

    def _is_visible(self) -> bool:
        with suppress(OSError):
            return (self.folder / TOKEN).read_text() == self.token
        return False


@dataclass(frozen=True)
class Order:
    """All that a worker needs to train one run."""

    config: RunConfig
    path: Path
    seconds: float | None
    with_report: bool
    shared: SharedFolder
    directory: Path  # where the bench was started: paths of data may be relative to it


class Supervisor:
    """Trains the run of an order in a process of its own, and returns the error of that process."""

    def __init__(self, order: Order) -> None:
        self.order, self.must_stop = order, False
        self.process: ChildProcess | None = None

    def __call__(self) -> Exception | None:
        try:
            self.order.shared.check()
        except ValueError as error:
            return error
        with _on_signals(self._stop):
            with _without_main_module():
                self.process = ChildProcess(train_order, self.order)
            self._wait()
        return self.process.error

    def save(self) -> None:
        """Stop the training and wait until it has saved."""
        self.must_stop = True
        self._wait()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.must_stop = True

    def _wait(self) -> None:
        while self.process is not None and not self.process.has_ended():
            if self.must_stop:
                self.process.terminate()
            time.sleep(0.1)


def train_order(order: Order) -> None:
    """Train a run: the work of the process that a supervisor starts."""
    with suppress(OSError):  # without the directory, only absolute paths are found
        os.chdir(order.directory)
    until = None if order.seconds is None else time.monotonic() + order.seconds
    train_one(order.config, order.path, until, order.with_report)


@contextmanager
def _on_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals by which a cluster stops a worker."""
    before = {}
    with suppress(ValueError):  # not the main thread: the cluster cannot stop this worker by a signal
        before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the main module of the cluster's worker, which each new process would import again (1 s with Ray)."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
