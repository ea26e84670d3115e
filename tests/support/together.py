"""The work of real processes in tests: they begin to train at the same time, and draw no report."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from pathlib import Path

from mnar.bench import parallel
from mnar.config import RunConfig


def train_together(
    begin: Barrier | None, config: RunConfig, path: Path, until: float | None, with_report: bool
) -> None:
    """Train a run as `mnar.bench.parallel` does, once all processes that share `begin` are there."""
    if begin is not None:
        begin.wait()
    parallel.train_one(config, path, until, with_report=False)
