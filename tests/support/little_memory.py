"""Code that gets little memory besides the file it has mapped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NUM_IMAGES, SHAPE = 100_000, (3, 32, 32)  # 307 MB
MEGABYTES = 90  # a copy of one channel is 102
# The limit is on what a process can write to: pages of a file mapped for reading do not count.
BEFORE = f"""
import resource
from pathlib import Path
import numpy as np
import torch
from mnar.datasets.statistics import mean_and_std
from mnar.datasets.user_files.arrays import tensor_of
from mnar.training.loader import Loader
from mnar.types import DataSet, Split

torch.set_num_threads(1)
images = tensor_of(np.memmap(FILE, np.uint8, "r", shape=({NUM_IMAGES}, *{SHAPE})))
used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + {MEGABYTES} * 2**20, resource.RLIM_INFINITY))
try:
    images.clone()
except RuntimeError:
    print("no room for a copy")
"""


def run_with_little_memory(code: str, folder: Path) -> None:
    """Run `code`, to which `images` is a mapped file of zeros that does not fit into the memory it gets."""
    file = folder / "images"
    with file.open("wb") as opened:
        opened.truncate(NUM_IMAGES * SHAPE[0] * SHAPE[1] * SHAPE[2])  # a hole: takes no space on disk
    script = f"FILE = {str(file)!r}\n{BEFORE}\n{code}\nprint('done')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["no room for a copy", "done"], done.stdout + done.stderr
