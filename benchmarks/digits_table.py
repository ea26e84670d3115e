"""Every image learner on digits, as its own paper has it and with PRG, side by side.

    python benchmarks/digits_table.py --out runs/digits               # 5 seeds, a quarter of an hour on 2 cores
    python benchmarks/digits_table.py --out runs/digits --learners fixmatch simmatch --guidances prg --seeds 3

Runs that are done are not run again; the same command goes on after a stop.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from mnar.bench.parallel import run_all
from mnar.learners import LEARNERS
from mnar.recipes import configure
from mnar.report import summary
from mnar.run.reader import read_run

IMAGE_LEARNERS = [name for name, learner in LEARNERS.items() if "images" in learner.suits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--learners", nargs="+", default=IMAGE_LEARNERS, choices=IMAGE_LEARNERS)
    parser.add_argument(
        "--guidances", nargs="+", default=["default", "prg", "prg_last"], help='"default": as in its paper'
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    arguments = parser.parse_args()

    configs = {
        arguments.out / f"{learner}+{guidance}-seed{seed}": configure(
            dataset="digits",
            learner=learner,
            guidance=None if guidance == "default" else guidance,
            seed=seed,
            settings=["engine.device=cpu", *arguments.set],
        )
        for learner in arguments.learners
        for guidance in (arguments.guidances if LEARNERS[learner].is_guided else ["default"])
        for seed in range(1, arguments.seeds + 1)
    }
    began = time.monotonic()
    run_all(configs, lambda share: None)
    print(f"{time.monotonic() - began:.0f} s\n\n| method | accuracy | geometric mean |\n| --- | --- | --- |")
    for row in summary([read_run(path) for path in configs]):
        scores = row.headline
        print(f"| {row.method} | {scores.accuracy_median_last_20.percent} | {scores.geometric_mean.percent} |")


if __name__ == "__main__":
    main()
