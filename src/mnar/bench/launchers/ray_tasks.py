"""`mnar bench --launcher ray`: each run is a task of a Ray cluster.

Ray keeps its worker processes, so that the second run of a worker starts as quickly as a local one. Ray itself never
repeats a task: `mnar.bench.parallel` starts the run of a lost worker again, and Ray chooses another worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from mnar.bench.launchers.launcher import RemoteJob, WorkerLost, check_device
from mnar.bench.launchers.ray_cluster import RayCluster, last_line
from mnar.bench.launchers.worker import Order, SharedFolder, Supervisor
from mnar.config import RunConfig


class RayTasks:
    """The launcher for Ray clusters."""

    pause = 0.1

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.cluster = RayCluster(options)
        self.shared: SharedFolder | None = None

    def check(self, configs: Collection[RunConfig], seconds: float | None) -> None:
        for config in configs:
            check_device(config)

    @contextmanager
    def opened(self, folder: Path) -> Iterator[None]:
        with self.cluster.connected():
            self.shared = SharedFolder.mark(folder)
            self.cluster.check_nodes(_look, self.shared)
            yield

    def num_at_once(self, configs: Collection[RunConfig], asked: int | None, seconds: float | None) -> int:
        places = [self._num_places(config) for config in configs]
        if asked is not None:
            return asked
        # Without a time limit, Ray gets all runs at once and lets them wait, so that an autoscaler sees the demand.
        return max(1, len(places)) if seconds is None else min(places, default=1)

    def start(self, config: RunConfig, path: Path, seconds: float | None, with_report: bool) -> RayJob:
        assert self.shared is not None, "the launcher is not open"
        order = Order(config, path.resolve(), seconds, with_report, self.shared, Path.cwd())
        task = ray.remote(_train).options(max_retries=0, name=f"mnar {path.name}", **self._resources(config))
        return RayJob(task.remote(order), path, has_time_limit=seconds is not None)

    def submit(self) -> None:
        """Every task has been handed over already."""

    def _resources(self, config: RunConfig) -> dict[str, float]:
        """What one run needs, in the words of Ray."""
        return self.cluster.resources(config.engine.device)

    def _num_places(self, config: RunConfig) -> int:
        """How many such runs the cluster can train at the same time."""
        check_device(config)
        return self.cluster.num_places(self._resources(config), "a run", "--set engine.device=cpu")


class RayJob(RemoteJob):
    """A run that a Ray worker trains."""

    def __init__(self, answer: Any, path: Path, *, has_time_limit: bool) -> None:
        super().__init__(path, has_time_limit=has_time_limit)
        self.answer = answer

    def is_done(self) -> bool:
        return bool(ray.wait([self.answer], timeout=0)[0])

    def outcome(self) -> Exception | None:
        try:
            error: Exception | None = ray.get(self.answer)
            return error
        except RayTaskError as error:
            return RuntimeError(f"the Ray task of this run failed: {last_line(error)}")
        except RayError as error:  # the worker or its node is gone
            return WorkerLost(f"Ray lost the worker of this run ({type(error).__name__})")

    def cancel(self) -> None:
        ray.cancel(self.answer, force=False)  # `Supervisor` gets SIGINT; a task that waits does not start


def _train(order: Order) -> Exception | None:
    return Supervisor(order)()


def _look(shared: SharedFolder) -> Exception | None:
    try:
        shared.check()
    except ValueError as error:
        return error
    return None
