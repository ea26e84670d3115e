"""Kill a bench of many tiny runs, or one of its workers, again and again, and compare its results with a quiet bench.

    python benchmarks/bench_kills.py
    python benchmarks/bench_kills.py --runs 20 --every 3 --seed 1

The time between two kills is uniform between 0 and twice `--every`. Each kill is a SIGKILL of the process of the bench
or of one of its workers, with equal chances. The same command then starts again, as a user would start it, until it
ends without a failed run. The times of the runs and their speeds differ between any two benches; everything else in
results.json, and the metrics and the model of every run, must be equal to the byte. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

CELLS = "digits/cadr-g20"
NUM_CELLS = 4  # fixmatch alone, and with cadr, prg and prg_last
TINY = (
    "engine.device=cpu",
    "model.width=4",
    "train.batch_labeled=16",
    "train.batch_unlabeled=32",
    "train.eval_every=10",
    "train.save_every=7",
)
TIMES = ("minutes", "images_per_second")  # of a run in results.json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help=f"rounded up to a multiple of {NUM_CELLS}")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--every", type=float, default=10.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    options = parser.parse_args()
    num_seeds = -(-options.runs // NUM_CELLS)
    with tempfile.TemporaryDirectory() as name:
        quiet, killed = Path(name) / "quiet", Path(name) / "killed"
        began = time.monotonic()
        start_bench(quiet, num_seeds, options.iterations).wait()
        seconds = time.monotonic() - began
        print(f"{NUM_CELLS * num_seeds} runs of {options.iterations} steps, undisturbed: {seconds:.0f} s", flush=True)
        began = time.monotonic()
        kills, num_starts = bench_under_fire(killed, num_seeds, options)
        seconds = time.monotonic() - began
        print(
            f"with a kill every {options.every:g} s: {seconds:.0f} s, {len(kills)} kills ({kills.count('bench')} of "
            f"the bench, {kills.count('worker')} of a worker), {num_starts} starts of the command"
        )
        for what in ("results", "metrics", "models"):
            contents = [contents_of(folder, what) for folder in (quiet, killed)]
            print(f"{what} ({len(contents[0])}): {'equal' if contents[0] == contents[1] else 'DIFFERENT'}")
        left = sorted(files_of(killed) - files_of(quiet))
        print(f"files that only the killed bench has: {', '.join(left) or 'none'}")


def start_bench(out: Path, num_seeds: int, iterations: int) -> subprocess.Popen[bytes]:
    settings = [part for setting in TINY for part in ("--set", setting)]
    counts = ["--seeds", str(num_seeds), "--iterations", str(iterations), "--processes", "2"]
    command = [sys.executable, "-P", "-m", "mnar", "bench", CELLS, "--out", str(out), *counts, *settings]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def bench_under_fire(out: Path, num_seeds: int, options: argparse.Namespace) -> tuple[list[str], int]:
    """Repeat the bench until it ends without a failure; return what was killed, and the number of starts."""
    dice, kills, num_starts = random.Random(options.seed), list[str](), 1
    bench = start_bench(out, num_seeds, options.iterations)
    while True:
        try:
            if bench.wait(dice.uniform(0, 2 * options.every)) == 0:
                return kills, num_starts
            bench = start_bench(out, num_seeds, options.iterations)  # killed, or a worker was killed twice
            num_starts += 1
        except subprocess.TimeoutExpired:
            kills += kill_one(bench, dice)


def kill_one(bench: subprocess.Popen[bytes], dice: random.Random) -> list[str]:
    """Kill the bench or one of its workers; return which. There may be no worker at this moment."""
    victim, kind = bench.pid, "bench"
    if dice.random() < 0.5:
        workers = workers_of(bench.pid)
        if not workers:
            return []
        victim, kind = dice.choice(workers), "worker"
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
        return [kind]
    return []


def workers_of(bench: int) -> list[int]:
    """The processes that train: children of the fork server, which is a child of the bench."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    return sorted(process for process, parent in parents.items() if parents.get(parent) == bench)


def contents_of(bench: Path, what: str) -> list[Any]:
    if what == "results":
        cells = json.loads((bench / "results.json").read_text())["cells"]
        for run in (run for cell in cells for run in cell["runs"]):
            for name in TIMES:
                del run[name]
        return list(cells)
    file = {"metrics": "metrics.jsonl", "models": "model.safetensors"}[what]
    return [(str(path.relative_to(bench)), path.read_bytes()) for path in sorted(bench.rglob(file))]


def files_of(bench: Path) -> set[str]:
    return {str(path.relative_to(bench)) for path in bench.rglob("*")}


if __name__ == "__main__":
    main()
