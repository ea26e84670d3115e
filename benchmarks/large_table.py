"""Print the time and the peak memory of `mnar inspect` and of 20 training steps on tables of several sizes.

    python benchmarks/large_table.py --rows 250000 1000000

The tables have columns of numbers and of categories, and 2 % of the rows have a label. `mnar train` reads the file,
trains a network and the labels-only baseline for 20 steps each, predicts all rows without a label, and writes the
reports. The table is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reading import write_file

LABELED_SHARE = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[250_000, 1_000_000])
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--learner", default="pseudo_label")
    options = parser.parse_args()
    print(f"{'rows':>9}  {'command':24}  {'wall, s':>7}  {'CPU, s':>6}  {'peak memory, GB':>15}")
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            table = folder / "table.csv"
            write_file(table, num_rows, options.columns, LABELED_SHARE)
            training = ["train", table, "--learner", options.learner, "--iterations", 20, "--out", folder / "run"]
            for arguments in (["inspect", table, "--out", folder / "inspect.json"], training):
                wall, cpu, memory = cost_of(mnar_command(*arguments))
                what = "inspect" if arguments is not training else "train --iterations 20"
                print(f"{num_rows:>9,}  {what:24}  {wall:>7.1f}  {cpu:>6.1f}  {memory:>15.2f}", flush=True)


def mnar_command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "mnar", *map(str, arguments)]


def cost_of(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return its wall time and its CPU time in seconds, and its peak memory in GB.

    The peak memory is at least that of this script, which is smaller than that of `mnar`.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"this command failed: {' '.join(command)}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
