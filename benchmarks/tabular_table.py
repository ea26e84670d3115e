"""The paper's table on tabular MNIST: 7 settings × {VIME, + PRG, + PRG^Last}, beside the paper's mean ± sd.

    python benchmarks/tabular_table.py --data DIR --out runs/tabular   # 10 seeds, an hour on 2 cores
    python benchmarks/tabular_table.py --data DIR --out runs/tabular --set learner.consistency=mse --name mse

The unlabelled set is the whole training set in every setting, so the runs of a seed share one encoder. Runs that are
done are not run again; the same command goes on after a stop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from mnar.bench.parallel import run_all
from mnar.config import RunConfig
from mnar.recipes import RECIPES, configure
from mnar.run.assemble import pretraining_config
from mnar.run.folder import RunFolder
from mnar.training.headline import headline

METHODS = {"none": "vime", "prg": "vime+prg", "prg_last": "vime+prg_last"}
NUM_UNLABELED = 60_000  # MNIST's training images
SETTINGS = tuple(dict.fromkeys(name.split("/")[1] for name in RECIPES if name.startswith("tabular/")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--name", default="default", help="of this variant, for the folders")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    arguments = parser.parse_args()

    seeds, on_cpu = range(1, arguments.seeds + 1), "engine.device=cpu"
    encoders = {seed: arguments.out / f"encoder-seed{seed}" for seed in seeds}
    began = time.monotonic()
    cells = [f"tabular/{setting}/{METHODS[method]}" for method in arguments.methods for setting in arguments.settings]
    alone = {
        seed: configure(recipe=cells[0], data=arguments.data, seed=seed, settings=[on_cpu, *arguments.set])
        for seed in seeds
    }
    stages = {encoders[seed]: pretraining_config(config, NUM_UNLABELED) for seed, config in alone.items()}
    run_all(stages, lambda share: None)
    print(f"encoders: {time.monotonic() - began:.0f} s", flush=True)

    def config(recipe: str, seed: int) -> RunConfig:
        settings = [on_cpu, f"learner.encoder={encoders[seed].resolve()}", *arguments.set]
        return configure(recipe=recipe, data=arguments.data, seed=seed, settings=settings)

    folders = {
        (cell, seed): arguments.out / arguments.name / f"{cell.replace('/', '_')}-seed{seed}"
        for cell in cells
        for seed in seeds
    }
    began = time.monotonic()
    run_all({path: config(cell, seed) for (cell, seed), path in folders.items()}, lambda share: None)
    print(f"runs: {time.monotonic() - began:.0f} s\n")

    print("| setting | " + " | ".join(f"{METHODS[m]}, ours | paper" for m in arguments.methods) + " |")
    print("| --- |" + " --- | --- |" * len(arguments.methods))
    for setting in arguments.settings:
        row = [setting]
        for method in arguments.methods:
            cell = f"tabular/{setting}/{METHODS[method]}"
            scores = [100 * headline(RunFolder(folders[cell, seed]).evaluations()).accuracy_final for seed in seeds]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            row += [f"{statistics.mean(scores):.1f} ± {spread:.1f}"]
            row += [RECIPES[cell].printed]
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
