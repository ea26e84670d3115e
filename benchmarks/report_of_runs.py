"""Print the time, the peak memory and the size of `mnar report` for 50 runs on digits.

    python benchmarks/report_of_runs.py
    python benchmarks/report_of_runs.py --folder runs/fifty

The runs are trained first, with a small network for 90 steps. Each step is evaluated, so that a run has the 90
evaluations of a usual run on digits. There are two folders of 50 runs: ten methods in one setting with five seeds, and
five methods in five settings with two seeds. With `--folder`, the runs are kept, and a second call trains nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from large_table import cost_of, mnar_command
from mnar.bench.parallel import run_all
from mnar.config import RunConfig
from mnar.recipes import configure

GUIDANCES = ("none", "prg", "prg_last", "cadr", "distribution_alignment")
METHODS = [(learner, guidance) for learner in ("fixmatch", "flexmatch") for guidance in GUIDANCES]
GAMMAS = (5, 10, 20, 50, 100)
SMALL = (
    "engine.device=cpu",
    "model.width=4",
    "train.batch_labeled=16",
    "train.batch_unlabeled=32",
    "train.eval_every=1",
    "train.log_every=1",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to keep the runs; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        benches = {
            "10 methods, 1 setting, 5 seeds": (METHODS, (20,), 5),
            "5 methods, 5 settings, 2 seeds": (METHODS[: len(GUIDANCES)], GAMMAS, 2),
        }
        for number, (title, (methods, gammas, num_seeds)) in enumerate(benches.items(), 1):
            runs, report = folder / str(number), folder / f"report-{number}.html"
            configs = {
                runs / f"{learner}-{guidance}-gamma{gamma}-seed{seed}": tiny_run(learner, guidance, gamma, seed)
                for learner, guidance in methods
                for gamma in gammas
                for seed in range(1, num_seeds + 1)
            }
            run_all(configs, lambda share: None, with_reports=False)
            wall, cpu, memory = cost_of(mnar_command("report", runs, "--out", report))
            print(
                f"{len(configs)} runs ({title}): {wall:.1f} s, {cpu:.1f} s CPU, peak memory {memory:.2f} GB, "
                f"{report.stat().st_size / 1e6:.2f} MB",
                flush=True,
            )


def tiny_run(learner: str, guidance: str, gamma: int, seed: int) -> RunConfig:
    settings = [*SMALL, f"protocol.gamma={gamma}"]
    return configure(dataset="digits", learner=learner, guidance=guidance, iterations=90, seed=seed, settings=settings)


if __name__ == "__main__":
    main()
