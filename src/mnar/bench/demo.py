"""The demonstration: what labels missing not at random do to FixMatch, and what PRG does about it, in minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mnar.bench.parallel import run_all
from mnar.recipes import configure
from mnar.report import write_report
from mnar.run.file_names import REPORT
from mnar.run.reader import Run, read_run

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
    num_done = run_all(configs, on_progress)
    runs = [read_run(path) for path in configs]
    write_report(
        runs,
        folder / REPORT,
        title="Labels missing not at random: scikit-learn's digits, CADR's protocol, gamma 20",
    )
    return runs, num_done
