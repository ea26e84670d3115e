"""How long `mnar bench` takes with `--launcher ray` compared with local processes: many small runs, two at a time.

The launchers take turns. Measure on an idle machine: where Linux groups processes by session (sched_autogroup), Ray's
workers have groups of their own and may get a larger share of busy cores. The time is that of the whole command, with
the start of a local Ray. The script also checks that both launchers write the same metrics.

    python benchmarks/launcher_time.py --runs 40 --turns 2
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

RECIPE = "digits/cadr-g20/fixmatch"
SMALL = ("engine.device=cpu", "model.width=4", "train.batch_labeled=16", "train.batch_unlabeled=32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.turns):
            metrics = {}
            for launcher in ("local", "ray") if turn % 2 == 0 else ("ray", "local"):
                out = Path(folder) / f"{launcher}-{turn}"
                began = time.perf_counter()
                run_bench(launcher, out, arguments.runs, arguments.iterations)
                seconds[launcher].append(time.perf_counter() - began)
                metrics[launcher] = [file.read_bytes() for file in sorted(out.rglob("metrics.jsonl"))]
                print(f"turn {turn + 1}: {launcher} {seconds[launcher][-1]:.1f} s", flush=True)
            assert len(metrics["local"]) == arguments.runs
            assert metrics["local"] == metrics["ray"], "the launchers disagree"
    ratios = [ray / local for local, ray in zip(seconds["local"], seconds["ray"], strict=True)]
    print(f"{arguments.runs} runs of {arguments.iterations} steps, two at a time; target: ray <= 1.2 times local")
    print(f"ray / local: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; median {median(ratios):.2f}")


def run_bench(launcher: str, out: Path, num_runs: int, iterations: int) -> None:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    counts = ["--seeds", str(num_runs), "--iterations", str(iterations), "--processes", "2"]
    command = [sys.executable, "-m", "mnar", "bench", RECIPE, "--out", str(out), *counts, *settings]
    subprocess.run([*command, "--launcher", launcher], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
