"""The demonstration: what labels missing not at random do to FixMatch, and what PRG does about it, in minutes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import torch

from mnar.config import RunConfig
from mnar.folder import CONFIG, MODEL, REPORT, read_config
from mnar.recipes import configure
from mnar.report import Run, read_metrics, read_run, what_changed, write_report
from mnar.run import new_run, resume_run

METHODS = [("supervised", "none"), ("fixmatch", "none"), ("fixmatch", "prg"), ("fixmatch", "prg_last")]


def demo(
    folder: Path, *, seeds: Sequence[int], iterations: int | None, on_progress: Callable[[float], None]
) -> list[Run]:
    """Train every method with every seed on digits, one process a core, and write one report.

    Runs that are done are not run again, and those cut off are gone on with.
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
    num_processes = max(1, min(len(os.sched_getaffinity(0)), len(missing)))
    # Fresh interpreters: a fork of a process that has used torch's threads can hang.
    pool = ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn"))
    with pool:
        futures = [pool.submit(_run, configs[path], path) for path in missing]
        try:
            _watch(futures, configs, on_progress)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    runs = [read_run(path) for path in configs]
    write_report(
        runs,
        folder / REPORT,
        title="Labels missing not at random: scikit-learn's digits, CADR's protocol, gamma 20",
        lead=what_changed(runs),
    )
    return runs


def _run(config: RunConfig, path: Path) -> None:
    torch.set_num_threads(1)
    if (path / CONFIG).exists():
        resume_run(path)
    else:
        new_run(config, path)


def _watch(
    futures: Sequence[Future[None]], configs: dict[Path, RunConfig], on_progress: Callable[[float], None]
) -> None:
    total = sum(config.train.iterations for config in configs.values())
    while True:
        finished = [future for future in futures if future.done()]
        for future in finished:
            future.result()  # raises what the run raised
        steps = [lines[-1]["step"] for path in configs if (lines := read_metrics(path))]
        on_progress(sum(steps) / total)
        if len(finished) == len(futures):
            return
        time.sleep(0.3)


def _check_reusable(path: Path, config: RunConfig) -> None:
    if not (path / CONFIG).exists():
        return
    differences = read_config(path).differences(config)
    if differences:
        raise FileExistsError(
            f"{path} holds a run with other settings ({'; '.join(differences)}); choose another --out, or remove it"
        )
