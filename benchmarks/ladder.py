"""Compare single changes of a recipe: one row per change, one column per seed, all runs in one process.

    python benchmarks/ladder.py --recipe table1/cifar10-cadr-g20/fixmatch+prg --schedule fast --iterations 8192 \\
        --data ~/data --out runs/ladder --seeds 8 9 --change "" --change "guidance.smoothing=1" \\
        --change "train.lr=0.01 train.weight_decay=0.05"

A change is a list of settings, as --set takes them, separated by spaces; "" is the recipe itself. --set adds a setting
to all rows. Kernels are compiled once, and data are read once per seed, so that short runs cost little more than their
steps. Finished runs are kept, and an interrupted run is resumed. The table shows the accuracy and the geometric mean at
the last evaluation, because the last 20 evaluations of a short run would describe the way to the result.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import RunFolder, load_data, new_run, resume_run
from mnar.types import DataSet


def folder_name(change: str, seed: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.=+-]+', '_', change) or 'recipe'}-seed{seed}"


def trained(config: RunConfig, folder: Path, data: DataSet) -> str:
    """Train or resume a run, and return its scores."""
    files = RunFolder(folder)
    if not files.has_config:
        new_run(config, folder, data=data)
    elif differences := files.config().differences(config):
        raise ValueError(f"{folder} has other settings ({'; '.join(differences)}); choose another --out")
    elif not files.is_finished:
        resume_run(folder, data=data)
    last = files.evaluations()[-1]["test"]
    return f"{100 * last['accuracy']:.1f} / {100 * last['geometric_mean']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--schedule", default="published")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--change", action="append", default=[], metavar="SETTINGS")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    arguments = parser.parse_args()

    changes, scores = arguments.change or [""], dict[tuple[str, int], str]()
    for seed in arguments.seeds:
        configs = {
            change: configure(
                recipe=arguments.recipe,
                schedule=arguments.schedule,
                iterations=arguments.iterations,
                data=None if arguments.data is None else str(arguments.data),
                seed=seed,
                settings=[*arguments.set, *change.split()],
            )
            for change in changes
        }
        data = load_data(configs[changes[0]])  # the seed may draw the test set
        for change, config in configs.items():
            began = time.perf_counter()
            scores[change, seed] = trained(config, arguments.out / folder_name(change, seed), data)
            seconds = time.perf_counter() - began
            print(f"seed {seed}, {change or 'the recipe'}: {scores[change, seed]} after {seconds:.0f} s", flush=True)

    print("\n| change | " + " | ".join(f"seed {seed}" for seed in arguments.seeds) + " |")
    print("| --- " * (1 + len(arguments.seeds)) + "|")
    for change in changes:
        cells = [scores[change, seed] for seed in arguments.seeds]
        print(f"| {change or 'the recipe'} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
