"""A Ray cluster: connect to the cluster, ask its nodes, and count how many workers it has room for.

All commands with `--launcher ray` use the same options and the same checks.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

OPTIONS = {
    "address": "address of the cluster; default: RAY_ADDRESS, a Ray on this machine, or a new one",
    "num_cpus": "CPUs per run or per worker; default: 1",
    "num_gpus": "GPUs per run or per worker, e.g. 0.5 for two of them per GPU; default: 1, or 0 if no GPU is used",
    "memory_gb": "memory per run or per worker that Ray sets aside",
}
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 120.0  # a node may have to start its first worker
RESOURCES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # what Ray's nodes call the resources

Argument = TypeVar("Argument")


class RayCluster:
    """The cluster that the launcher options name. `nodes` are its machines while the connection is open."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name not in OPTIONS:
                raise ValueError(f"--launcher ray has no option {name!r}; choose one of {', '.join(OPTIONS)}")
            if name == "address":
                if not isinstance(value, str):
                    raise ValueError(f"--launcher-option address={value}: write HOST:PORT, e.g. 127.0.0.1:6379")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"--launcher-option {name}={value}: give a number that is not negative")
        self.options = dict(options)
        self.nodes: list[dict[str, Any]] = []

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to the cluster, unless this process is connected already; disconnect at the end."""
        is_new = not ray.is_initialized()
        if is_new:
            self._connect()
        try:
            self.nodes = [node for node in ray.nodes() if node["Alive"]]
            yield
        finally:
            if is_new:
                ray.shutdown()

    def check_nodes(self, check: Callable[[Argument], Exception | None], argument: Argument) -> None:
        """Let each node check something, and raise the first error that a node returns."""
        task = ray.remote(check)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in self.nodes]
        answers = [
            task.options(max_retries=0, num_cpus=0, scheduling_strategy=place).remote(argument) for place in places
        ]
        try:
            problems = ray.get(answers, timeout=SECONDS_TO_ANSWER)
        except GetTimeoutError as error:
            raise ValueError(
                f"a node of the Ray cluster did not answer for {SECONDS_TO_ANSWER:.0f} s; look at `ray status`, or "
                "choose --launcher local"
            ) from error
        except RayError as error:  # e.g. a worker without the package
            raise ValueError(
                f"a node of the Ray cluster cannot work: {last_line(error)}. Install the same version of mnar on all "
                "nodes, or choose --launcher local"
            ) from error
        for problem in problems:
            if problem is not None:
                raise problem

    def resources(self, device: str) -> dict[str, float]:
        """What one run or one worker needs for a device (cpu, cuda or auto), in the words of Ray."""
        has_gpus = any(node["Resources"].get("GPU", 0) for node in self.nodes)
        uses_gpu = device == "cuda" or (device == "auto" and has_gpus)
        needs = {"num_cpus": self.options.get("num_cpus", 1), "num_gpus": self.options.get("num_gpus", int(uses_gpu))}
        if "memory_gb" in self.options:
            needs["memory"] = self.options["memory_gb"] * 2**30
        return needs

    def num_places(self, resources: Mapping[str, float], who: str, remedy: str) -> int:
        """How many processes with these needs the cluster has room for. No room is an error.

        who       what needs the resources, for the error message
        remedy    an option that needs no GPU, for the error message
        """
        needs = {RESOURCES[name]: number for name, number in resources.items() if number}
        places = sum(
            math.floor(min((node["Resources"].get(name, 0) / number for name, number in needs.items()), default=1))
            for node in self.nodes
        )
        if places < 1:
            wanted = " and ".join(f"{number:g} {name}" for name, number in needs.items())
            raise ValueError(
                f"{who} needs {wanted}, and no node of the Ray cluster has that much; choose other numbers with "
                f"--launcher-option num_cpus=… and num_gpus=…, or {remedy}"
            )
        return places

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray that mnar starts reports to no one
        address = self.options.get("address") or os.environ.get("RAY_ADDRESS")
        dashboard = None if address else False
        try:
            _check_answers(address)
            ray.init(address=address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {address}" if address else "on this machine"
            raise ValueError(
                f"Ray {where} does not answer: {str(error).partition(chr(10))[0]}. Check the address "
                "(--launcher-option address=HOST:PORT), or choose --launcher local"
            ) from error


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which has the message; a traceback stands before it."""
    return str(error).strip().rpartition("\n")[2]


def _check_answers(address: str | None) -> None:
    """Raise an error if no program listens at HOST:PORT. Ray itself tries for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT).close()
