"""Time and peak memory of `mnar relabel` on a memory-mapped pool of images, and whether it survives being killed.

    python benchmarks/relabel_pool.py --rows 1000000 --kills 5

The script makes images of 32×32 pixels, trains a small network on 1,000 of them, and labels the pool twice: once
without a stop, and once with a SIGKILL at random moments, each followed by the same command. Both files must be equal.
The numbers are printed; nothing is asserted.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

CLASSES = 4
LABELED = 400
IMAGES_AT_A_TIME = 10_000


def images(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images with noise and a brighter quarter; the quarter is the class."""
    y = rng.integers(CLASSES, size=count)
    x = rng.integers(0, 120, (count, 3, 32, 32), np.uint8)
    for c in range(CLASSES):
        top, left = 16 * (c // 2), 16 * (c % 2)
        x[y == c, :, top : top + 16, left : left + 16] += 60
    return x, y


def make_pool(path: Path, rows: int) -> None:
    """Write the pool block by block, so that this script needs little memory itself."""
    pool = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, 3, 32, 32))
    rng = np.random.default_rng(1)
    for start in range(0, rows, IMAGES_AT_A_TIME):
        pool[start : start + IMAGES_AT_A_TIME] = images(rng, min(IMAGES_AT_A_TIME, rows - start))[0]
    pool.flush()


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "mnar", *map(str, arguments)]


def peak_memory(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; return its peak resident memory in MB.

    The figure of `wait4` would include the memory of this script, which makes the pool.
    """
    peak = 0.0
    while process.poll() is None:
        with suppress(OSError, IndexError):
            peak = float(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
        time.sleep(0.1)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="Where to keep the pool and the run. Default: a temporary folder.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run, pool, train = folder / "run", folder / f"pool-{options.rows}.npy", folder / "train.npz"
        if not run.exists():
            x, y = images(np.random.default_rng(0), 1000)
            np.savez(train, x=x, y=np.where(np.arange(1000) < LABELED, y, -1))
            arguments = ("train", train, "--learner", "fixmatch", "--iterations", 100, "--out", run)
            subprocess.run(command(*arguments), check=True, stdout=subprocess.DEVNULL)
        if not pool.exists():
            make_pool(pool, options.rows)
        label = ("relabel", run, "--pool", pool, "--overwrite", "--device", "cpu", "--out")
        begin = time.perf_counter()
        memory = peak_memory(subprocess.Popen(command(*label, folder / "straight.csv"), stdout=subprocess.DEVNULL))
        seconds = time.perf_counter() - begin
        print(f"{options.rows:,} images: {seconds:.0f} s, {options.rows / seconds:,.0f} images/s, peak {memory:.0f} MB")

        resume, moments, kills = tuple(part for part in label if part != "--overwrite"), random.Random(0), 0
        killed = folder / "killed.csv"
        killed.unlink(missing_ok=True)
        while True:
            process = subprocess.Popen(command(*resume, killed), stdout=subprocess.DEVNULL)
            if kills == options.kills:
                process.wait()
                break
            try:
                process.wait(timeout=5 + moments.random() * seconds / options.kills)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("straight.csv", "killed.csv")]
        print(f"killed {kills} times: {'the same file' if digests[0] == digests[1] else 'ANOTHER FILE'}")
        print(f"{os.cpu_count()} cores, torch {torch.__version__} with {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
