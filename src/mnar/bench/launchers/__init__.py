"""Where the runs of a bench are trained: in processes of this machine, on a Ray cluster, or as jobs of Slurm.

launcher.py        what every launcher can do, and a run that a worker trains
worker.py          what happens on a worker: check the shared folder, then train as a local process does
ray_cluster.py     connection to a Ray cluster and its options, for `mnar predict`, `relabel` and `cache`, too
ray_files.py       work of a Ray cluster on files that all nodes see, for these three commands
ray_tasks.py       `--launcher ray`
slurm_jobs.py      `--launcher slurm`

The launcher of local processes is in mnar.bench.parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from mnar.bench.launchers.launcher import Launcher
from mnar.config import read_yaml

LAUNCHERS = ("local", "ray", "slurm")
PACKAGES = {"ray": "ray", "slurm": "submitit"}


def make_launcher(name: str, options: Sequence[str] = ()) -> Launcher | None:
    """The launcher with this name, or None for local processes. `options` are texts NAME=VALUE.

    The call checks packages and options. It does not connect to a cluster; `Launcher.opened` does.
    """
    values = launcher_values(name, options)
    return None if values is None else _maker(name)(values)


def launcher_values(name: str, options: Sequence[str]) -> dict[str, Any] | None:
    """The values of the options NAME=VALUE of a launcher whose package is installed; None for this machine."""
    if name not in LAUNCHERS:
        raise ValueError(f"the launcher {name!r} is not known; choose one of {', '.join(LAUNCHERS)}")
    values = _parse(options)
    if name == "local":
        if values:
            raise ValueError(
                f"--launcher-option {options[0]} is not for local processes; choose another --launcher, or leave the "
                "option out"
            )
        return None
    if find_spec(PACKAGES[name]) is None:
        raise ValueError(
            f"--launcher {name} needs the package {PACKAGES[name]}; install it with pip install 'mnar[{name}]', or "
            "choose --launcher local"
        )
    return values


def _maker(name: str) -> Callable[[Mapping[str, Any]], Launcher]:
    if name == "ray":
        from mnar.bench.launchers.ray_tasks import RayTasks

        return RayTasks
    from mnar.bench.launchers.slurm_jobs import SlurmJobs

    return SlurmJobs


def _parse(options: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise ValueError(f"--launcher-option {option} is not NAME=VALUE; write e.g. --launcher-option num_gpus=1")
        try:
            values[name] = read_yaml(value)
        except ValueError as error:
            raise ValueError(f"--launcher-option {option}: the value is {error}; put it in quotes") from error
    return values
