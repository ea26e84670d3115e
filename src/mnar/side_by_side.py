"""Many runs, one process a core: what is done stays, what was cut off goes on."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import NamedTuple

import torch

from mnar.config import RunConfig
from mnar.folder import CONFIG, METRICS, MODEL, InUse, StopFlag, read_config, stopping_on_signals
from mnar.run import new_run, resume_run
from mnar.train import Interrupted

OnFailure = Callable[[Path, Exception], None]
LEAST_SECONDS = 30.0  # less is spent on starting
PATIENCE = 60.0  # seconds for a run to save that belongs to somebody who was killed
_is_training = threading.Lock()  # of a worker: held as long as it trains
STOPPED = "stopped; go on with the same command"
TAIL_BYTES = 2**16  # of metrics.jsonl; the last evaluation begins there, unless its matrices are large


def run_all(
    configs: Mapping[Path, RunConfig],
    on_progress: Callable[[float], None],
    *,
    num_processes: int | None = None,
    seconds: float | None = None,
    on_failure: OnFailure | None = None,
) -> int:
    """Train each configuration into its folder; returns how many were done already. `on_progress` gets a share.

    Within `seconds`, runs share the time equally, those that are behind first, and what is not done then is saved to
    be gone on with. A run that fails ends them all, unless there is an `on_failure` to be told.
    """
    on_failure = _raise if on_failure is None else on_failure
    missing = {path: config for path, config in configs.items() if not (path / MODEL).exists()}
    for path, config in configs.items():
        try:
            check_reusable(path, config)
        except ValueError as error:  # its configuration is damaged
            on_failure(path, error)
            missing.pop(path, None)
    num_done = sum((path / MODEL).exists() for path in configs)
    if missing:
        with stopping_on_signals() as stop:
            runs = _Runs(missing, num_processes or num_cores(), seconds, on_failure)
            runs.go(stop, lambda: on_progress(_share_done(configs)))
    return num_done


class Turn(NamedTuple):
    """A run that is being trained, and for how long."""

    path: Path
    began: float
    seconds: float | None

    def is_about_to_end(self, now: float) -> bool:
        return self.seconds is not None and now - self.began > 0.9 * self.seconds


class _Runs:
    """Those that wait and those that are being trained."""

    def __init__(
        self, configs: Mapping[Path, RunConfig], num_processes: int, seconds: float | None, on_failure: OnFailure
    ) -> None:
        self.configs, self.on_failure = configs, on_failure
        # Least done first; a time share for each is then an equal share of the whole, however often it is gone on.
        by_share = sorted(configs, key=lambda path: steps_done(path, configs[path]) / configs[path].train.iterations)
        self.waiting = deque(by_share if seconds else configs)
        self.training: dict[Future[None], Turn] = {}
        self.broke: set[Path] = set()  # were being trained when a process was killed; each is tried again, alone
        self.num_processes = max(1, min(num_processes, len(configs)))
        self.until = None if seconds is None else time.monotonic() + seconds  # no clock that can be set

    def go(self, stop: StopFlag, report: Callable[[], None]) -> None:
        pool = _new_pool(self.num_processes)
        try:
            while self.waiting or self.training:
                if stop.is_set:
                    raise Interrupted(STOPPED)
                try:
                    self._collect()
                    self._submit(pool)
                except BrokenProcessPool:
                    pool.shutdown(wait=True)
                    self._suspect([turn.path for turn in self.training.values()])
                    self.training.clear()
                    pool = _new_pool(self.num_processes)
                report()
                if self.training:
                    time.sleep(0.3)
            pool.shutdown()
        except BaseException:
            _end(pool)
            raise

    def _submit(self, pool: ProcessPoolExecutor) -> None:
        while self.waiting:
            path = self.waiting[0]
            alone = path in self.broke or any(turn.path in self.broke for turn in self.training.values())
            if len(self.training) >= (1 if alone else self.num_processes):
                return
            seconds = self._seconds_for_one()
            if seconds is None or seconds > 0:
                turn = Turn(path, time.monotonic(), seconds)
                self.training[pool.submit(_run, self.configs[path], path, seconds)] = turn
            self.waiting.popleft()  # not before: a broken pool refuses it

    def _seconds_for_one(self) -> float | None:
        """An equal share of the time that is left, if there is a limit."""
        if self.until is None:
            return None
        now = time.monotonic()
        left, num_staying = self.until - now, sum(not turn.is_about_to_end(now) for turn in self.training.values())
        num_rounds = math.ceil((len(self.waiting) + num_staying) / self.num_processes)
        return min(left, max(LEAST_SECONDS, left / num_rounds))

    def _collect(self) -> None:
        for future in [future for future in self.training if future.done()]:
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                raise error
            path = self.training.pop(future).path
            if isinstance(error, Interrupted | KeyboardInterrupt):
                if self.until is None:
                    raise Interrupted(STOPPED)
            elif isinstance(error, Exception):
                self.on_failure(path, error)

    def _suspect(self, paths: Iterable[Path]) -> None:
        """Nobody knows whose process it was that was killed: whoever it happens to twice, the second time alone."""
        for path in paths:
            if path in self.broke:
                reason = "its process was killed, perhaps for want of memory; choose a smaller batch or fewer processes"
                self.on_failure(path, RuntimeError(reason))
            else:
                self.broke.add(path)
                self.waiting.append(path)


def _raise(path: Path, error: Exception) -> None:
    raise error


def _new_pool(num_processes: int) -> ProcessPoolExecutor:
    # Fresh interpreters: a fork of a process that has used torch's threads can hang.
    return ProcessPoolExecutor(
        num_processes, get_context("spawn"), initializer=_end_with_parent, initargs=(os.getpid(),)
    )


def _end(pool: ProcessPoolExecutor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    while workers := active_children():  # asked again: a worker may go on to a run that waits for it
        for worker in workers:
            worker.terminate()  # a run that is asked to stop saves first
        time.sleep(0.1)


def _end_with_parent(parent: int) -> None:
    """Nobody would ask for more once the process that started this one has been killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)  # a run that is asked to stop saves first
        _is_training.acquire(timeout=PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(config: RunConfig, path: Path, seconds: float | None) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    until = None if seconds is None else began + seconds
    with _is_training:
        while True:
            try:
                if (path / CONFIG).exists():
                    return resume_run(path, until=until)
                return new_run(config, path, until=until)
            except InUse:
                if time.monotonic() - began > PATIENCE:
                    raise
                time.sleep(1)


def _share_done(configs: Mapping[Path, RunConfig]) -> float:
    total = sum(config.train.iterations for config in configs.values())
    return sum(steps_done(path, config) for path, config in configs.items()) / total


def steps_done(path: Path, config: RunConfig) -> int:
    if (path / MODEL).exists():
        return config.train.iterations  # though it may have ended early
    return _last_step(path / METRICS)


def _last_step(metrics: Path) -> int:
    """Of the last whole evaluation, from the end of the file alone: it is asked often."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        size, length = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            file.seek(max(0, size - length))
            whole_lines = file.read(length).rpartition(b"\n")[0]
            steps = re.findall(rb'^\{"step": (\d+)', whole_lines, re.MULTILINE)
            if steps or length >= size:
                return int(steps[-1]) if steps else 0
            length *= 4


def num_cores() -> int:
    """Those this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_reusable(path: Path, config: RunConfig) -> None:
    if not (path / CONFIG).exists():
        return
    differences = read_config(path).differences(config)
    if differences:
        raise FileExistsError(
            f"{path} holds a run with other settings ({'; '.join(differences)}); choose another --out, or remove it"
        )
