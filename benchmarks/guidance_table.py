"""FixMatch with every guidance, in every situation that docs/choosing.md tells apart.

    python benchmarks/guidance_table.py --out runs/guidances                      # digits, 5 seeds, 2 cores
    python benchmarks/guidance_table.py --out runs/guidances --situations uniform reversed
    python benchmarks/guidance_table.py --out runs/cifar10 --dataset cifar10 --data DIR --seeds 1 --processes 1 \
        --situations uniform reversed --set train.iterations=16384                # one GPU

Runs that are done are not run again; the same command goes on after a stop.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from mnar.bench.parallel import run_all
from mnar.guidances import GUIDANCES
from mnar.recipes import RECIPES, configure
from mnar.report import summary
from mnar.run.reader import read_run

# What the unlabelled pool is like, where the labels are many for the first class and few for the last.
SITUATIONS = {
    "uniform": ["protocol.name=cadr", "protocol.gamma=20"],
    "reversed": ["protocol.name=darp", "protocol.gamma_l=100", "protocol.gamma_u=100", "protocol.reverse=true"],
    "same": ["protocol.name=darp", "protocol.gamma_l=100", "protocol.gamma_u=100"],
    "balanced_labels": ["protocol.name=balanced", "protocol.num_labels=40", "protocol.gamma_u=100"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data", help="the folder of the data set, if it is not digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--guidances", nargs="+", default=list(GUIDANCES))
    parser.add_argument("--situations", nargs="+", default=list(SITUATIONS), choices=list(SITUATIONS))
    parser.add_argument("--processes", type=int, help="one a core, unless told otherwise")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    arguments = parser.parse_args()

    runs = {}
    for situation in arguments.situations:
        for guidance in arguments.guidances:
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                runs[arguments.out / situation / f"{guidance}-seed{seed}"] = configure(
                    dataset=arguments.dataset,
                    data=arguments.data,
                    learner="fixmatch",
                    guidance=guidance,
                    seed=seed,
                    settings=[*SITUATIONS[situation], *arguments.set],
                )
    began = time.monotonic()
    run_all(runs, lambda share: None, num_processes=arguments.processes)
    print(f"{time.monotonic() - began:.0f} s")
    table = {}
    for situation in arguments.situations:
        print(f"\n{situation}\n\n| guidance | accuracy | geometric mean | final | the paper's |\n{'| --- ' * 5}|")
        for guidance in arguments.guidances:
            records = [read_run(path) for path in runs if path.parent.name == situation and _is(path, guidance)]
            scores = summary(records)[0].headline
            cell = RECIPES.get(f"table1/{arguments.dataset}-cadr-g20/{_method(guidance)}")
            printed = cell.printed if cell and situation == "uniform" else "–"
            figures = (scores.accuracy_median_last_20, scores.geometric_mean, scores.accuracy_final)
            print(f"| {guidance} | {' | '.join(figure.percent for figure in figures)} | {printed} |")
            table[f"{situation}/{guidance}"] = [figure.percent for figure in figures]
    (arguments.out / "table.json").write_text(json.dumps(table, indent=1))


def _is(path: Path, guidance: str) -> bool:
    return path.name.rpartition("-seed")[0] == guidance


def _method(guidance: str) -> str:
    return "fixmatch" if guidance == "none" else f"fixmatch+{guidance}"


if __name__ == "__main__":
    main()
