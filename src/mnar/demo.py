"""The demonstration: what labels missing not at random do to FixMatch, and what PRG does about it, in minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from mnar.config import RunConfig
from mnar.folder import CONFIG, MODEL, REPORT, StopFlag, read_config, stopping_on_signals
from mnar.recipes import configure
from mnar.report import Run, read_metrics, read_run, write_report
from mnar.run import new_run, resume_run
from mnar.train import Interrupted

METHODS = [("supervised", "none"), ("fixmatch", "none"), ("fixmatch", "prg"), ("fixmatch", "prg_last")]


def demo(
    folder: Path, *, seeds: Sequence[int], iterations: int | None, on_progress: Callable[[float], None]
) -> tuple[list[Run], int]:
    """Train every method with every seed on digits, one process a core, and write one report.

    Runs that are done are not run again, and those cut off are gone on with. Returns all runs, and how many were
    done already.
    """
    configs = {
        folder / f"{learner}+{guidance}-seed{seed}": configure(
            dataset="digits",
            learner=learner,
            guidance=guidance,
            iterations=iterations,
            seed=seed,
            settings=["engine.device=cpu"],
        )
        for seed in seeds
        for learner, guidance in METHODS
    }
    for path, config in configs.items():
        _check_reusable(path, config)
    missing = [path for path in configs if not (path / MODEL).exists()]
    num_processes = max(1, min(_num_cores(), len(missing)))
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
    runs = [read_run(path) for path in configs]
    write_report(
        runs,
        folder / REPORT,
        title="Labels missing not at random: scikit-learn's digits, CADR's protocol, gamma 20",
    )
    return runs, len(configs) - len(missing)


def _run(config: RunConfig, path: Path) -> None:
    torch.set_num_threads(1)
    if (path / CONFIG).exists():
        resume_run(path)
    else:
        new_run(config, path)


def _watch(
    futures: Sequence[Future[None]],
    configs: dict[Path, RunConfig],
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
        steps = [lines[-1]["step"] for path in configs if (lines := read_metrics(path))]
        on_progress(sum(steps) / total)
        if len(finished) == len(futures):
            return
        time.sleep(0.3)


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
