"""Images a second of the loader's batches: samples in memory, and in a memory-mapped file.

    python benchmarks/loader_time.py                                  # 50,000 images of 3×32×32, CPU
    python benchmarks/loader_time.py --images 50000 500000 --threads 2
    python benchmarks/loader_time.py --device cuda                    # also: samples on the device against the host

"on device" gathers in `batch`, "staged" on the host in `seek`, as for samples that do not fit on a GPU. The file is
written just before, so its pages are in the system's page cache if they fit there: what is timed is the memory-mapped
path, not the disk. Nothing is dropped from that cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mnar.augment import Augment
from mnar.datasets.user_files.arrays import tensor_of
from mnar.training.loader import Loader
from mnar.types import DataSet, Split

SHAPE = (3, 32, 32)
BATCH_LABELED, BATCH_UNLABELED = 64, 448
NUM_LABELED = 4000
WRITTEN_AT_ONCE = 10_000


def write_random_images(path: Path, num_images: int) -> None:
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, num_images, WRITTEN_AT_ONCE):
            size = min(WRITTEN_AT_ONCE, num_images - first)
            file.write(random.integers(0, 256, (size, *SHAPE), np.uint8).tobytes())


def as_they_are(images: Tensor, view: str) -> Tensor:
    return images


def images_per_second(loader: Loader, repeats: int, steps: int) -> list[float]:
    rates = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        for step in range(repeat * steps, (repeat + 1) * steps):
            loader.seek(step)
            loader.batch()
        if loader.device.type == "cuda":
            torch.cuda.synchronize()
        rates.append(steps * (BATCH_LABELED + BATCH_UNLABELED) / (time.perf_counter() - began))
    return rates[1:]  # the first round touches pages for the first time


def make_loader(
    images: Tensor, augment: Callable[[Tensor, str], Tensor], device: torch.device, on_device: bool
) -> Loader:
    targets = torch.zeros(len(images), dtype=torch.int64)
    data = DataSet(images, targets, images[:1], targets[:1], ("0", "1"), (0.5,) * 3, (0.25,) * 3)
    rows = np.arange(len(images))
    return Loader(
        data,
        Split(rows[:NUM_LABELED], rows),
        augment,
        views=("weak", "strong"),
        batch_labeled=BATCH_LABELED,
        batch_unlabeled=BATCH_UNLABELED,
        seed=0,
        device=device,
        on_device=on_device,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[50_000])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="in a repeat")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    views = Augment((0.5,) * 3, (0.25,) * 3).to(device)

    print(f"batches of {BATCH_LABELED} + {BATCH_UNLABELED} images, {device}, {options.threads} threads")
    print(f"{'images':>9}  {'views':14}{'samples':12}{'gathered':12}{'images/s':>12}{'slowest':>12}{'fastest':>12}")
    for num_images in options.images:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "images"
            write_random_images(path, num_images)
            mapped = tensor_of(np.memmap(path, np.uint8, "r", shape=(num_images, *SHAPE)))
            for views_name, augment in (("none", as_they_are), ("weak, strong", views)):
                for where, images in (("in memory", mapped.clone()), ("mapped", mapped)):
                    for how, on_device in (("on device", True), ("staged", False)):
                        loader = make_loader(images, augment, device, on_device)
                        rates = images_per_second(loader, options.repeats, options.steps)
                        figures = f"{statistics.median(rates):12,.0f}{min(rates):12,.0f}{max(rates):12,.0f}"
                        print(f"{num_images:9,}  {views_name:14}{where:12}{how:12}{figures}", flush=True)


if __name__ == "__main__":
    main()
