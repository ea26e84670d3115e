"""The demonstration: how labels that are missing not at random harm FixMatch, and how PRG helps. Takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mnar.bench.parallel import run_all
from mnar.recipes import configure
from mnar.report import write_report
from mnar.run.file_names import REPORT
from mnar.run.reader import Run, read_run

METHODS = [("supervised", "none"), ("fixmatch", "none"), ("fixmatch", "prg"), ("fixmatch", "prg_last")]
SHORT = "supervised"  # its runs take a fifth of the time of the others, since they use no unlabelled images


def demo(
    folder: Path, *, seeds: Sequence[int], iterations: int | None, on_progress: Callable[[float], None]
) -> tuple[list[Run], int]:
    """Train every method with every seed on scikit-learn's digits, one run per core at a time, and write one report.

    The report shows all runs. Single runs have no report of their own, because drawing 16 reports would take a tenth of
    the time. `mnar report RUN` draws one.

    Finished runs are not trained again, and interrupted runs are resumed. Return all runs, and how many runs were
    already finished.
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
    # The short runs come last, so that all cores have work until the end.
    longest_first = sorted(configs, key=lambda path: configs[path].learner.name == SHORT)
    num_done = run_all({path: configs[path] for path in longest_first}, on_progress, with_reports=False)
    runs = [read_run(path) for path in configs]
    write_report(
        runs,
        folder / REPORT,
        title="Labels missing not at random: scikit-learn's digits, CADR's protocol, gamma 20",
    )
    return runs, num_done
