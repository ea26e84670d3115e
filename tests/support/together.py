"""Workers that begin to train at the same time, and draw no reports."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import mnar.bench.parallel
from mnar.bench import parallel


def new_pool(num_processes: int, *, num_together: int) -> ProcessPoolExecutor:
    """Otherwise as that of `side_by_side`; nobody begins before so many are there."""
    spawn = get_context("spawn")
    arguments = (os.getpid(), spawn.Barrier(num_together))
    return ProcessPoolExecutor(num_processes, spawn, initializer=_begin, initargs=arguments)


def _begin(parent: int, all_are_there: Barrier) -> None:
    mnar.bench.parallel.write_run_report = lambda folder: None  # type: ignore[attr-defined]
    parallel._begin_work(parent)
    all_are_there.wait()
