"""Many runs, one process a core: what is done stays, what was cut off goes on."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import NamedTuple

import torch

from mnar.config import RunConfig
from mnar.report import write_run_report
from mnar.run import RunFolder, new_run, resume_run
from mnar.run.file_names import CONFIG, METRICS, MODEL, STATE
from mnar.run.lock import InUse, locked
from mnar.run.stopping import StopFlag, stopping_on_signals
from mnar.training.trainer import Interrupted

OnFailure = Callable[[Path, Exception], None]
LEAST_SECONDS = 30.0  # of a turn: less is spent on starting
PATIENCE = 60.0  # seconds for a run to save that belongs to somebody who was killed
STOPPED = "stopped; go on with the same command"


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
            total = sum(config.train.iterations for config in configs.values())
            runs.go(stop, lambda: on_progress(1 - runs.steps_left / total))
    else:
        on_progress(1.0)
    return num_done


class Turn(NamedTuple):
    """A run that is being trained, and for how long."""

    path: Path
    began: float
    seconds: float | None

    def is_about_to_end(self, now: float) -> bool:
        return self.seconds is not None and now - self.began > 0.9 * self.seconds


class _Runs:
    """Those that wait for their turn, and those that are being trained."""

    def __init__(
        self, configs: Mapping[Path, RunConfig], num_processes: int, seconds: float | None, on_failure: OnFailure
    ) -> None:
        self.configs, self.on_failure = configs, on_failure
        self.steps = {path: steps_done(path, config) for path, config in configs.items()}
        by_share = sorted(configs, key=lambda path: self.steps[path] / configs[path].train.iterations)
        self.waiting = deque(by_share if seconds else configs)
        self.training: dict[Future[None], Turn] = {}
        self.had_a_turn: list[Path] = []  # and are not done
        self.broke: set[Path] = set()  # were being trained when a process was killed; each is tried again, alone
        self.pool_is_spent = False
        self.num_processes = max(1, min(num_processes, len(configs)))
        self.until = None if seconds is None else time.monotonic() + seconds  # no clock that can be set
        self.strangers = active_children()

    @property
    def steps_left(self) -> int:
        return sum(config.train.iterations - self.steps[path] for path, config in self.configs.items())

    def go(self, stop: StopFlag, report: Callable[[], None]) -> None:
        pool = _new_pool(self.num_processes)
        try:
            while self.waiting or self.training:
                if stop.is_set:
                    raise Interrupted(STOPPED)
                self.steps |= {t.path: steps_done(t.path, self.configs[t.path]) for t in self.training.values()}
                try:
                    self._collect()
                    if self.pool_is_spent and not self.training:
                        pool = self._renewed(pool)
                    self._submit(pool)
                except BrokenProcessPool:
                    self._suspect(turn.path for turn in self.training.values())
                    self.training.clear()
                    pool = self._renewed(pool)
                report()
                if self.training:
                    time.sleep(0.3)
            pool.shutdown()
        except BaseException:
            self._end(pool)
            raise

    def _submit(self, pool: ProcessPoolExecutor) -> None:
        while self.waiting and not self.pool_is_spent:
            path = self.waiting[0]
            alone = path in self.broke or any(turn.path in self.broke for turn in self.training.values())
            if len(self.training) >= (1 if alone else self.num_processes):
                return
            seconds = self._seconds_for_one()
            if seconds is None or seconds > 0:
                with _workers_deaf_to_ctrl_c():
                    future = pool.submit(_run, self.configs[path], path, seconds)
                self.training[future] = Turn(path, time.monotonic(), seconds)
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
            self.steps[path] = steps_done(path, self.configs[path])  # it may have ended since they were read
            if isinstance(error, Interrupted | KeyboardInterrupt):
                if self.until is None:
                    raise Interrupted(STOPPED)
                self.had_a_turn.append(path)
            elif error is not None:
                self.on_failure(path, error if isinstance(error, Exception) else RuntimeError(repr(error)))
                self.pool_is_spent = torch.cuda.is_available()  # a CUDA error can outlive its run
        if self.until is not None and not self.waiting and self.until - time.monotonic() > LEAST_SECONDS:
            self.waiting.extend(self.had_a_turn)  # others did not need all of theirs
            self.had_a_turn.clear()

    def _suspect(self, paths: Iterable[Path]) -> None:
        """Nobody knows whose process it was that was killed: whoever it happens to twice, the second time alone."""
        for path in paths:
            if path in self.broke:
                reason = "its process was killed, perhaps for want of memory; choose a smaller batch or fewer processes"
                self.on_failure(path, RuntimeError(reason))
            else:
                self.broke.add(path)
                self.waiting.append(path)

    def _renewed(self, pool: ProcessPoolExecutor) -> ProcessPoolExecutor:
        self._end(pool)
        self.pool_is_spent = False
        return _new_pool(self.num_processes)

    def _end(self, pool: ProcessPoolExecutor) -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        while workers := [child for child in active_children() if child not in self.strangers]:
            for worker in workers:
                worker.terminate()  # a run that is asked to stop saves first; asked again, as it may go on to another
            time.sleep(0.1)


def _raise(path: Path, error: Exception) -> None:
    raise error


def _new_pool(num_processes: int) -> ProcessPoolExecutor:
    # Fresh interpreters: a fork of a process that has used torch's threads can hang.
    return ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=_begin_work, initargs=(os.getpid(),))


@contextmanager
def _workers_deaf_to_ctrl_c() -> Iterator[None]:
    """A terminal tells all processes, and the parent will: a worker that begins now inherits the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_is_training = threading.Lock()  # of a worker: held as long as it trains


def _begin_work(parent: int) -> None:
    """End with the parent: nobody would ask for more once it has been killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)  # a run that is asked to stop saves first
        _is_training.acquire(timeout=PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(config: RunConfig, path: Path, seconds: float | None) -> None:
    torch.set_num_threads(1)
    until = None if seconds is None else time.monotonic() + seconds
    with _is_training:
        _wait_for_last_owner(path)
        if (path / CONFIG).exists():
            engine = [f"engine.{name}={json.dumps(value)}" for name, value in asdict(config.engine).items()]
            resume_run(
                path,
                root=config.dataset.options.get("root"),
                settings=engine,
                until=until,
                on_finished=write_run_report,
            )
        else:
            new_run(config, path, until=until, on_finished=write_run_report)


def _wait_for_last_owner(path: Path) -> None:
    """The worker of somebody who was killed may still be saving."""
    given_up = time.monotonic() + PATIENCE
    while path.is_dir():
        try:
            with locked(path):
                return
        except InUse:
            if time.monotonic() > given_up:
                raise
            time.sleep(1)


def steps_done(path: Path, config: RunConfig) -> int:
    """As far as the run was saved."""
    if (path / MODEL).exists():
        return config.train.iterations  # though it may have ended early
    return RunFolder(path).saved_step()


def num_cores() -> int:
    """Those this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_reusable(path: Path, config: RunConfig) -> None:
    if not (path / CONFIG).exists():
        if left := next((name for name in (MODEL, STATE, METRICS) if (path / name).exists()), None):
            remedy = f"put it back, or remove {path} and train the run again"
            raise ValueError(f"{path / CONFIG} is missing, though {left} is there; {remedy}")
        return
    differences = RunFolder(path).config().differences(config)
    if differences:
        raise FileExistsError(
            f"{path} holds a run with other settings ({'; '.join(differences)}); give those it has, or another --out"
        )
