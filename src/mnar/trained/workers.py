"""Choose where a pool is labelled by the name of a launcher: on this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence

from mnar.bench.launchers import launcher_values
from mnar.trained.labelling import ThisMachine, Workers


def make_workers(launcher: str, options: Sequence[str], device: str) -> Workers:
    """Return the workers of a launcher, "local" or "ray". `options` are texts NAME=VALUE.

    The call checks packages and options. It does not connect to a cluster; `Workers.opened` does.
    """
    values = launcher_values(launcher, options)
    if values is None:
        return ThisMachine()
    from mnar.trained.ray_workers import RayWorkers

    return RayWorkers(values, device)
