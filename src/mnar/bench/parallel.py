"""Train many runs at the same time, each in a process of its own, on this machine or where a launcher starts them.

Finished runs are kept and interrupted runs are resumed. Because no two runs share a process, a run that fails, that is
killed or that leaves the GPU in a bad state affects no other run.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from mnar.bench.child_process import PATIENCE, ChildProcess, ProcessKilled
from mnar.bench.launchers.launcher import Job, Launcher, WorkerLost
from mnar.config import RunConfig
from mnar.report import write_run_report
from mnar.run import RunFolder, new_run, resume_run
from mnar.run.file_names import CONFIG, METRICS, MODEL, STATE
from mnar.run.lock import InUse, locked
from mnar.run.machine import num_cores
from mnar.run.stopping import StopFlag, stopping_on_signals
from mnar.training.trainer import Interrupted

OnFailure = Callable[[Path, Exception], None]
LEAST_SECONDS = 30.0  # the shortest turn; the start of the process takes a few seconds of it
MOST_LOSSES = 3  # a run that loses its worker this often without a new checkpoint fails
STOPPED = "stopped; run the same command again to continue"


def run_all(
    configs: Mapping[Path, RunConfig],
    on_progress: Callable[[float], None],
    *,
    num_processes: int | None = None,
    seconds: float | None = None,
    on_failure: OnFailure | None = None,
    with_reports: bool = True,
    launcher: Launcher | None = None,
) -> int:
    """Train each configuration into its folder; return how many runs were already finished.

    on_progress      called several times per second with the share of all steps that are done
    num_processes    number of runs that are trained at the same time; one per core if not given
    seconds          time limit that the runs share equally. The runs that are furthest behind start first. Runs that
                     are not finished in time are saved, and the next call resumes them.
    on_failure       called with the folder and the error of every run that fails. Without it, the first failure stops
                     all runs and is raised.
    with_reports     whether every finished run gets a report of its own, which takes 1 to 2 s to draw
    launcher         where the runs are trained; in processes of this machine if not given
    """
    on_failure = on_failure or _raise
    missing = {path: config for path, config in configs.items() if not (path / MODEL).exists()}
    for path, config in configs.items():
        try:
            check_reusable(path, config)
        except ValueError as error:  # the configuration in the folder is damaged
            on_failure(path, error)
            missing.pop(path, None)
    num_done = sum((path / MODEL).exists() for path in configs)
    if missing:
        with stopping_on_signals() as stop:
            runs = _Runs(missing, num_processes or num_cores(), seconds, on_failure, with_reports, launcher)
            total = sum(config.train.iterations for config in configs.values())
            runs.train(stop, lambda: on_progress(1 - runs.steps_left / total))
    else:
        on_progress(1.0)
    return num_done


class Turn(NamedTuple):
    """The job that trains a run now, for a number of seconds or until the run is finished."""

    job: Job
    began: float
    seconds: float | None

    def is_about_to_end(self, now: float) -> bool:
        return self.seconds is not None and now - self.began > 0.9 * self.seconds


class _Runs:
    """The runs that wait for a turn and the runs that have their turn."""

    def __init__(
        self,
        configs: Mapping[Path, RunConfig],
        num_processes: int,
        seconds: float | None,
        on_failure: OnFailure,
        with_reports: bool,
        launcher: Launcher | None,
    ) -> None:
        self.launcher = launcher or LocalProcesses()
        self.configs, self.on_failure, self.with_reports = configs, on_failure, with_reports
        self.steps = {path: steps_done(path, config) for path, config in configs.items()}
        furthest_behind_first = sorted(configs, key=lambda path: self.steps[path] / configs[path].train.iterations)
        self.waiting = deque(furthest_behind_first if seconds else configs)
        self.turns: dict[Path, Turn] = {}
        self.unfinished: list[Path] = []  # runs whose turn is over
        self.killed: set[Path] = set()  # runs whose process was killed once; their second turn is without other runs
        self.losses: dict[Path, tuple[int, int]] = {}  # saved step of a lost run, and how often it was lost there
        self.num_processes = max(1, min(num_processes, len(configs)))
        self.until = None if seconds is None else time.monotonic() + seconds

    @property
    def steps_left(self) -> int:
        return sum(config.train.iterations - self.steps[path] for path, config in self.configs.items())

    def train(self, stop: StopFlag, report: Callable[[], None]) -> None:
        try:
            while self.waiting or self.turns:
                if stop.is_set:
                    raise Interrupted(STOPPED)
                self._collect()
                self._start()
                report()
                if self.turns:
                    time.sleep(self.launcher.pause)
        finally:
            self._end_turns()

    def _collect(self) -> None:
        """Handle the runs whose job has ended."""
        for path, turn in list(self.turns.items()):
            has_ended = turn.job.has_ended()
            self.steps[path] = steps_done(path, self.configs[path])  # read last: the final step of a run that has ended
            if has_ended:
                del self.turns[path]
                self._settle(path, turn.job.error)
        if self.until is not None and not self.waiting and self.until - time.monotonic() > LEAST_SECONDS:
            self.waiting.extend(self.unfinished)  # other runs did not need all of their time
            self.unfinished.clear()

    def _settle(self, path: Path, error: Exception | None) -> None:
        if isinstance(error, Interrupted):
            if self.until is None:
                raise Interrupted(STOPPED)  # a signal stopped the run, not a time limit
            self.unfinished.append(path)
        elif isinstance(error, WorkerLost) and self._may_move(path):
            self.waiting.appendleft(path)
        elif isinstance(error, ProcessKilled) and path not in self.killed:
            self.killed.add(path)  # perhaps the runs needed too much memory together
            self.waiting.append(path)
        elif error is not None:
            self.on_failure(path, error)

    def _may_move(self, path: Path) -> bool:
        """Count the loss of a worker. A run may lose any number of workers as long as it gets further each time."""
        step, times = self.losses.get(path, (-1, 0))
        times = times + 1 if step == self.steps[path] else 1
        self.losses[path] = self.steps[path], times
        return times < MOST_LOSSES

    def _start(self) -> None:
        self._start_jobs()
        self.launcher.submit()

    def _start_jobs(self) -> None:
        """Start jobs for the runs that wait, as far as the number of processes and the time allow."""
        while self.waiting:
            must_be_alone = not self.killed.isdisjoint([self.waiting[0], *self.turns])
            if len(self.turns) >= (1 if must_be_alone else self.num_processes):
                return
            seconds, began = self._seconds_for_one(), time.monotonic()
            path = self.waiting.popleft()
            if seconds is None or seconds > 0:
                job = self.launcher.start(self.configs[path], path, seconds, self.with_reports)
                self.turns[path] = Turn(job, began, seconds)

    def _seconds_for_one(self) -> float | None:
        """An equal share of the time that is left, if there is a time limit."""
        if self.until is None:
            return None
        now = time.monotonic()
        left, num_staying = self.until - now, sum(not turn.is_about_to_end(now) for turn in self.turns.values())
        num_rounds = math.ceil((len(self.waiting) + num_staying) / self.num_processes)
        return min(left, max(LEAST_SECONDS, left / num_rounds))

    def _end_turns(self) -> None:
        while running := [turn.job for turn in self.turns.values() if not turn.job.has_ended()]:
            for job in running:
                job.terminate()  # repeated, because a run whose pretraining has just ended may miss a signal
            time.sleep(0.1)


class LocalProcesses:
    """The launcher for this machine: each run is a process."""

    pause = 0.1

    def check(self, configs: Collection[RunConfig], seconds: float | None) -> None:
        """Every run can be trained here, for any time."""

    @contextmanager
    def opened(self, folder: Path) -> Iterator[None]:
        yield

    def num_at_once(self, configs: Collection[RunConfig], asked: int | None, seconds: float | None) -> int:
        uses_gpu = torch.cuda.is_available() and any(config.engine.device != "cpu" for config in configs)
        return asked or (1 if uses_gpu else num_cores())  # one run fills a GPU

    def start(self, config: RunConfig, path: Path, seconds: float | None, with_report: bool) -> ChildProcess:
        until = None if seconds is None else time.monotonic() + seconds  # all processes have the same monotonic clock
        return ChildProcess(train_one, config, path, until, with_report)

    def submit(self) -> None:
        """Every process has started already."""


def _raise(path: Path, error: Exception) -> None:
    raise error


def train_one(config: RunConfig, path: Path, until: float | None, with_report: bool = True) -> None:
    """Train a new run or resume an interrupted run: the work of one process."""
    torch.set_num_threads(1)
    on_finished = write_run_report if with_report else None
    _wait_for_last_owner(path)
    if (path / CONFIG).exists():
        root = config.dataset.options.get("root")
        engine = [f"engine.{name}={json.dumps(value)}" for name, value in asdict(config.engine).items()]
        resume_run(path, root=root, settings=engine, until=until, on_finished=on_finished)
    else:
        new_run(config, path, until=until, on_finished=on_finished)


def _wait_for_last_owner(path: Path) -> None:
    """Wait for the lock of the folder: a process whose parent was killed may still be saving the run."""
    for _ in range(PATIENCE if path.is_dir() else 0):
        with suppress(InUse), locked(path):
            return
        time.sleep(1)


def steps_done(path: Path, config: RunConfig) -> int:
    """The step of the newest checkpoint. A finished run counts all its steps, even after early stopping."""
    return config.train.iterations if (path / MODEL).exists() else RunFolder(path).saved_step()


def check_reusable(path: Path, config: RunConfig) -> None:
    """Raise an error if the folder contains a run that differs from `config`, or a run without its configuration."""
    if not (path / CONFIG).exists():
        if left := next((name for name in (MODEL, STATE, METRICS) if (path / name).exists()), None):
            remedy = f"restore it, or remove {path} to train the run again"
            raise ValueError(f"{path / CONFIG} is missing, although {left} is there; {remedy}")
        return
    differences = RunFolder(path).config().differences(config)
    if differences:
        raise FileExistsError(
            f"{path} holds a run with other settings ({'; '.join(differences)}); "
            "use the settings of that run, or choose another --out"
        )
