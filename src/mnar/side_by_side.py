"""Many runs, one process a core: what is done stays, what was cut off goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from mnar.config import RunConfig
from mnar.folder import CONFIG, MODEL, StopFlag, read_config, stopping_on_signals
from mnar.report import read_metrics
from mnar.run import new_run, resume_run
from mnar.train import Interrupted


def run_all(
    configs: Mapping[Path, RunConfig], on_progress: Callable[[float], None], *, num_processes: int | None = None
) -> int:
    """Train each configuration into its folder; returns how many were done already. `on_progress` gets a share."""
    for path, config in configs.items():
        _check_reusable(path, config)
    missing = [path for path in configs if not (path / MODEL).exists()]
    num_processes = max(1, min(num_processes or _num_cores(), len(missing)))
    # Fresh interpreters: a fork of a process that has used torch's threads can hang.
    with stopping_on_signals() as stop, ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        futures = [pool.submit(_run, configs[path], path) for path in missing]
        try:
            _watch(futures, configs, on_progress, stop)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while workers := active_children():  # asked again: a worker may go on to a run that waits for it
                for worker in workers:
                    worker.terminate()  # a run that is asked to stop saves first
                time.sleep(0.1)
            raise
    return len(configs) - len(missing)


def _run(config: RunConfig, path: Path) -> None:
    torch.set_num_threads(1)
    if (path / CONFIG).exists():
        resume_run(path)
    else:
        new_run(config, path)


def _watch(
    futures: Sequence[Future[None]],
    configs: Mapping[Path, RunConfig],
    on_progress: Callable[[float], None],
    stop: StopFlag,
) -> None:
    total = sum(config.train.iterations for config in configs.values())
    while True:
        if stop.is_set:
            raise Interrupted("stopped; go on with the same command")
        finished = [future for future in futures if future.done()]
        for future in finished:
            future.result()  # raises what the run raised
        on_progress(sum(_steps_done(path, config) for path, config in configs.items()) / total)
        if len(finished) == len(futures):
            return
        time.sleep(0.3)


def _steps_done(path: Path, config: RunConfig) -> int:
    if (path / MODEL).exists():
        return config.train.iterations  # though it may have ended early
    lines = read_metrics(path)
    return int(lines[-1]["step"]) if lines else 0


def _num_cores() -> int:
    """Those this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_reusable(path: Path, config: RunConfig) -> None:
    if not (path / CONFIG).exists():
        return
    differences = read_config(path).differences(config)
    if differences:
        raise FileExistsError(
            f"{path} holds a run with other settings ({'; '.join(differences)}); choose another --out, or remove it"
        )
