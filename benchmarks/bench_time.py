"""What `mnar bench` itself costs when all its cells are done: made-up runs, then the command as a user types it.

python benchmarks/bench_time.py --runs 500
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mnar.bench import Bench
from mnar.recipes import RECIPES

LINE = {"test": {"accuracy": 0.5, "geometric_mean": 0.4, "precision": [0.5] * 10, "recall": [0.5] * 10}, "train": {}}
SPLIT = {"dataset": "made up", "class_names": list("0123456789"), "hash": "0"}
SPLIT |= {part: [1] * 10 for part in ("labeled", "unlabeled", "test")}
MACHINE = {"mnar": "0", "commit": None, "python": "3", "torch": "2", "device": "none"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    arguments = parser.parse_args()
    tables = sorted({name.partition("/")[0] for name in RECIPES})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        num_seeds = math.ceil(arguments.runs / len(Bench(out, tables, seeds=[1]).configs))
        bench = Bench(out, tables, seeds=range(1, num_seeds + 1))
        for path, config in bench.configs.items():
            path.mkdir(parents=True)
            (path / "config.yaml").write_text(config.to_yaml())
            (path / "split.json").write_text(json.dumps(SPLIT))
            session = {**MACHINE, "seconds": 100.0, "images_per_second": 1000.0}
            (path / "environment.json").write_text(json.dumps({**MACHINE, "sessions": [session]}))
            steps = {*range(config.train.eval_every, config.train.iterations, config.train.eval_every)}
            lines = (json.dumps({"step": step, **LINE}) for step in sorted({*steps, config.train.iterations}))
            (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
            (path / "model.safetensors").touch()
        command = [sys.executable, "-P", "-m", "mnar", "bench", *tables, "--seeds", str(num_seeds), "--out", str(out)]
        print(f"{len(bench.names)} cells, {len(bench.configs)} runs, each evaluated as often as its recipe says")
        for what in ("first, reading each run", "again", "again"):
            print(f"{what}: {_seconds(command):.2f} s")
        print(f"of that, importing torch alone: {_seconds([sys.executable, '-c', 'import torch']):.2f} s")


def _seconds(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
