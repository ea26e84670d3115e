"""`mnar bench --launcher ray`: each run is a task of a Ray cluster.

Ray keeps its worker processes, so that the second run of a worker starts as quickly as a local one. Ray itself never
repeats a task: `mnar.bench.parallel` starts the run of a lost worker again, and Ray chooses another worker.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mnar.bench.launchers.launcher import RemoteJob, WorkerLost, check_device
from mnar.bench.launchers.worker import Order, SharedFolder, Supervisor
from mnar.config import RunConfig

OPTIONS = {
    "address": "address of the cluster; default: RAY_ADDRESS, a Ray on this machine, or a new one",
    "num_cpus": "CPUs per run; default: 1",
    "num_gpus": "GPUs per run, e.g. 0.5 for two runs per GPU; default: 1, or 0 if the run does not use a GPU",
    "memory_gb": "memory per run that Ray sets aside",
}
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 120.0  # a node may have to start its first worker


class RayTasks:
    """The launcher for Ray clusters."""

    pause = 0.1

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name not in OPTIONS:
                raise ValueError(f"--launcher ray has no option {name!r}; choose one of {', '.join(OPTIONS)}")
            if name == "address":
                if not isinstance(value, str):
                    raise ValueError(f"--launcher-option address={value}: write HOST:PORT, e.g. 127.0.0.1:6379")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"--launcher-option {name}={value}: the value must be a number that is not negative")
        self.options = dict(options)
        self.nodes: list[dict[str, Any]] = []
        self.shared: SharedFolder | None = None

    @contextmanager
    def opened(self, folder: Path) -> Iterator[None]:
        is_new = not ray.is_initialized()
        if is_new:
            self._connect()
        try:
            self.nodes = [node for node in ray.nodes() if node["Alive"]]
            self.shared = SharedFolder.mark(folder)
            self._check_nodes()
            yield
        finally:
            if is_new:
                ray.shutdown()

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

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray that the bench starts reports to no one
        address = self.options.get("address") or os.environ.get("RAY_ADDRESS")
        dashboard = None if address else False
        try:
            _check_answers(address)
            ray.init(address=address, include_dashboard=dashboard, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {address}" if address else "on this machine"
            raise ValueError(
                f"Ray {where} does not answer: {str(error).partition(chr(10))[0]}. Check the address "
                "(--launcher-option address=HOST:PORT), or choose --launcher local"
            ) from error

    def _check_nodes(self) -> None:
        """Let each node look for the folder."""
        look = ray.remote(_look)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in self.nodes]
        answers = [
            look.options(max_retries=0, num_cpus=0, scheduling_strategy=place).remote(self.shared) for place in places
        ]
        try:
            errors = ray.get(answers, timeout=SECONDS_TO_ANSWER)
        except GetTimeoutError as error:
            raise ValueError(
                f"a node of the Ray cluster did not answer for {SECONDS_TO_ANSWER:.0f} s; look at `ray status`, or "
                "choose --launcher local"
            ) from error
        except RayError as error:  # e.g. a worker without the package
            raise ValueError(
                f"a node of the Ray cluster cannot train: {_last_line(error)}. Install the same version of mnar on all "
                "nodes, or choose --launcher local"
            ) from error
        for problem in errors:
            if problem is not None:
                raise problem

    def _resources(self, config: RunConfig) -> dict[str, float]:
        """What one run needs, in the words of Ray."""
        has_gpus = any(node["Resources"].get("GPU", 0) for node in self.nodes)
        device = config.engine.device
        uses_gpu = device == "cuda" or (device == "auto" and has_gpus)
        needs = {"num_cpus": self.options.get("num_cpus", 1), "num_gpus": self.options.get("num_gpus", int(uses_gpu))}
        if "memory_gb" in self.options:
            needs["memory"] = self.options["memory_gb"] * 2**30
        return needs

    def _num_places(self, config: RunConfig) -> int:
        """How many such runs the cluster can train at the same time."""
        check_device(config)
        needs = {_NAMES[name]: number for name, number in self._resources(config).items() if number}
        places = sum(
            math.floor(min((node["Resources"].get(name, 0) / number for name, number in needs.items()), default=1))
            for node in self.nodes
        )
        if places < 1:
            wanted = " and ".join(f"{number:g} {name}" for name, number in needs.items())
            raise ValueError(
                f"a run needs {wanted}, and no node of the Ray cluster has that much; choose other numbers with "
                "--launcher-option num_cpus=… and num_gpus=…, or --set engine.device=cpu"
            )
        return places


_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


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
            return RuntimeError(f"the Ray task of this run failed: {_last_line(error)}")
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


def _check_answers(address: str | None) -> None:
    """Raise an error if no program listens at HOST:PORT. Ray itself tries for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT).close()


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]
