"""What every launcher can do, and a run that a worker of a cluster trains."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from mnar.bench.child_process import ProcessKilled
from mnar.config import RunConfig
from mnar.run.file_names import MODEL
from mnar.training.trainer import Interrupted

SECONDS_UNTIL_VISIBLE = 60.0  # a network file system may show a new file this late


class WorkerLost(RuntimeError):
    """A worker ended before its run did, e.g. because its machine was switched off. The run can be resumed."""


class Job(Protocol):
    """A run that is being trained somewhere."""

    error: Exception | None

    def has_ended(self) -> bool:
        """Whether the job has ended. From then on, `error` is the error of the run, or None."""

    def terminate(self) -> None:
        """Ask the run to save and to end. The call may be repeated."""


class Launcher(Protocol):
    """Starts runs in their folders. A run whose folder contains a checkpoint is resumed."""

    pause: float  # seconds between two looks at the jobs

    def check(self, configs: Collection[RunConfig], seconds: float | None) -> None:
        """Raise an error if the launcher has no time limit of `seconds`, or can never train one of the runs.

        This is called before anything is written.
        """

    def opened(self, folder: Path) -> AbstractContextManager[None]:
        """Connect to the workers and check that they can train into `folder`; disconnect at the end."""

    def num_at_once(self, configs: Collection[RunConfig], asked: int | None, seconds: float | None) -> int:
        """How many jobs may be started before the first one ends. `asked` is the number that the user chose.

        Raise an error if no worker of the cluster can ever train one of the runs.
        """

    def start(self, config: RunConfig, path: Path, seconds: float | None, with_report: bool) -> Job:
        """Train the run in `path`, for a number of seconds or to its end."""

    def submit(self) -> None:
        """Called after one or several calls of `start`, so that a launcher can hand them over together."""


class RemoteJob:
    """A run that a worker trains. Subclasses ask their cluster about it."""

    def __init__(self, path: Path, *, has_time_limit: bool) -> None:
        self.path, self.has_time_limit = path, has_time_limit
        self.error: Exception | None = None
        self.is_over = self.was_terminated = False
        self.ended_at: float | None = None

    def is_done(self) -> bool:
        raise NotImplementedError

    def outcome(self) -> Exception | None:
        """The error of a job that is done; `WorkerLost` if the cluster lost the job."""
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def has_ended(self) -> bool:
        if self.is_over:
            return True
        if self.ended_at is None:
            if not self.is_done():
                return False
            self.error, self.ended_at = self._judged(self.outcome()), time.monotonic()
        if self.error is None and not self._is_model_visible():
            if time.monotonic() - self.ended_at < SECONDS_UNTIL_VISIBLE:
                return False
            self.error = ValueError(
                f"a worker has finished the run, but {self.path / MODEL} does not appear on this machine; choose --out "
                "on a file system that all workers share"
            )
        self.is_over = True
        return True

    def terminate(self) -> None:
        if not self.was_terminated:  # a second signal could end the run before it has saved
            self.was_terminated = True
            self.cancel()

    def _judged(self, error: Exception | None) -> Exception | None:
        """The error, or `WorkerLost` if the machine of the worker is the cause."""
        was_stopped = isinstance(error, Interrupted) and not (self.has_time_limit or self.was_terminated)
        if was_stopped or isinstance(error, ProcessKilled):
            lost = WorkerLost(f"the worker of this run stopped: {error}")
            lost.__cause__ = error
            return lost
        return error

    def _is_model_visible(self) -> bool:
        """Look into the folder: a network file system may remember for a while that a single file was missing."""
        with suppress(OSError):
            return MODEL in os.listdir(self.path)  # noqa: PTH208 - a set of names is enough
        return False


def check_device(config: RunConfig) -> None:
    """Refuse a GPU with a number: a worker sees only the GPUs that the cluster gave to its run."""
    if config.engine.device.startswith("cuda:"):
        raise ValueError(
            f"engine.device is {config.engine.device}, but the cluster chooses the GPU of each run; use "
            "--set engine.device=cuda"
        )
