"""`mnar bench --launcher slurm`: the runs are an array job of Slurm, through submitit.

A job that reaches its time limit or that is preempted saves its run, and Slurm queues the job again. A job that ends
without a result is submitted again by `mnar.bench.parallel`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError, UncompletedJobError

from mnar.bench.launchers.launcher import RemoteJob, WorkerLost, check_device
from mnar.bench.launchers.worker import Order, SharedFolder, Supervisor
from mnar.config import RunConfig

LOGS = "slurm"  # folder of the output of the jobs, below the folder of the bench
DEFAULTS = {"name": "mnar", "timeout_min": 240, "cpus_per_task": 1, "tasks_per_node": 1, "nodes": 1}
MOST_TIMEOUTS = 1000  # each time the run has got further; submitit allows 3 if nothing is said
GPUS = "gpus_per_node"


class SlurmJobs:
    """The launcher for clusters with Slurm."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = {**DEFAULTS, **options}
        self.cluster = self.options.pop("cluster", "slurm")
        if self.cluster not in ("slurm", "local"):
            raise ValueError(f"--launcher-option cluster={self.cluster}: choose slurm, or local to try the jobs here")
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "--launcher slurm needs the commands of Slurm, but there is no sbatch on this machine; use a login "
                "node of the cluster, or choose --launcher local"
            )
        self.pause = 1.0 if self.cluster == "slurm" else 0.1  # every look reads the shared file system
        with tempfile.TemporaryDirectory() as folder:  # options are refused before the bench writes anything
            self._update(submitit.AutoExecutor(folder, cluster=self.cluster), self.options)
        self.executor: Any = None
        self.shared: SharedFolder | None = None
        self.started: list[SlurmJob] = []  # not yet submitted

    @contextmanager
    def opened(self, folder: Path) -> Iterator[None]:
        self.shared = SharedFolder.mark(folder)
        kept = {"slurm_max_num_timeout": MOST_TIMEOUTS, "local_max_num_timeout": MOST_TIMEOUTS}
        self.executor = submitit.AutoExecutor(self.shared.folder / LOGS / "%j", cluster=self.cluster, **kept)
        self._update(self.executor, self.options)
        yield

    def check(self, configs: Collection[RunConfig], seconds: float | None) -> None:
        if seconds is not None:
            raise ValueError(
                "--minutes is not for --launcher slurm, because jobs wait in a queue; limit the time of a job with "
                "--launcher-option timeout_min=60 instead"
            )
        for config in configs:
            self._num_gpus(config)

    def num_at_once(self, configs: Collection[RunConfig], asked: int | None, seconds: float | None) -> int:
        if asked is not None and self.cluster == "slurm":
            self._update(self.executor, {"slurm_array_parallelism": asked})
        elif asked is not None:
            return asked
        return max(1, len(configs))  # one array has all runs

    def start(self, config: RunConfig, path: Path, seconds: float | None, with_report: bool) -> SlurmJob:
        assert self.shared is not None, "the launcher is not open"
        order = Order(config, path.resolve(), seconds, with_report, self.shared, Path.cwd())
        self.started.append(SlurmJob(order, self._num_gpus(config)))
        return self.started[-1]

    def submit(self) -> None:
        """Submit the started runs: one array per number of GPUs."""
        started, self.started = sorted(self.started, key=lambda job: job.num_gpus), []
        for num_gpus, group in groupby(started, key=lambda job: job.num_gpus):
            self._update(self.executor, {GPUS: num_gpus})
            jobs = list(group)
            with self.executor.batch():
                submitted = [self.executor.submit(RequeuedSupervisor(job.order)) for job in jobs]
            for job, handle in zip(jobs, submitted, strict=True):
                job.handle = handle

    def _update(self, executor: submitit.AutoExecutor, options: Mapping[str, Any]) -> None:
        try:
            executor.update_parameters(**options)
        except (NameError, AssertionError, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"submitit refuses an option of --launcher-option: {reason}. Options of sbatch have the prefix slurm_, "
                "e.g. slurm_partition=gpu"
            ) from error

    def _num_gpus(self, config: RunConfig) -> int:
        check_device(config)
        device = config.engine.device
        if GPUS in self.options:
            return int(self.options[GPUS])
        if device == "auto" and self.cluster == "slurm":
            raise ValueError(
                f"engine.device is auto, and Slurm must know whether a run needs a GPU; add --launcher-option {GPUS}=1 "
                f"or {GPUS}=0"
            )
        return int(device == "cuda")


class SlurmJob(RemoteJob):
    """A run that a job of Slurm trains."""

    def __init__(self, order: Order, num_gpus: int) -> None:
        super().__init__(order.path, has_time_limit=False)
        self.order, self.num_gpus = order, num_gpus
        self.handle: Any = None  # submitit's, from `SlurmJobs.submit` on

    def is_done(self) -> bool:
        # A job that was never submitted can only be ended.
        return self.was_terminated if self.handle is None else bool(self.handle.done())

    def outcome(self) -> Exception | None:
        if self.handle is None:
            return WorkerLost("the job of this run was not submitted")
        try:
            error: Exception | None = self.handle.result()
            return error
        except UncompletedJobError as error:
            return WorkerLost(f"job {self.handle.job_id} ended without a result; {self._logs()} ({_first_line(error)})")
        except FailedJobError as error:  # the job could not even begin, e.g. without the package
            return RuntimeError(f"job {self.handle.job_id} failed: {str(error).strip().rpartition(chr(10))[2]}")

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel(check=False)

    def _logs(self) -> str:
        return f"its output is in {self.handle.paths.stderr}"


class RequeuedSupervisor(Supervisor):
    """A supervisor that submitit can stop and queue again."""

    def checkpoint(self) -> DelayedSubmission:
        """Save the run. submitit calls this method in the job, shortly before the time limit or after a preemption."""
        self.save()
        return DelayedSubmission(RequeuedSupervisor(self.order))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
