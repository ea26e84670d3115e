"""How long a folder of images takes to read, first and again: python benchmarks/cache_time.py [--cifar FOLDER]"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mnar.datasets import cifar10
from mnar.datasets.user_files.image_csv import read_image_csv

SIDE = 32
PER_FOLDER = 1000
LABELED_EVERY = 10


def pictures(num_images: int, cifar: Path | None) -> npt.NDArray[np.uint8]:
    if cifar is None:
        return np.random.default_rng(0).integers(0, 256, (num_images, SIDE, SIDE, 3), np.uint8)
    images = cifar10(cifar).train_x.permute(0, 2, 3, 1).numpy()
    return images[np.arange(num_images) % len(images)]


def write_folder(folder: Path, images: npt.NDArray[np.uint8]) -> None:
    lines = ["path,label"]
    for row, image in enumerate(images):
        path = folder / f"{row // PER_FOLDER:03}" / f"{row:06}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
        if row % LABELED_EVERY == 0:
            lines.append(f"{path.relative_to(folder)},{row // LABELED_EVERY % 10}")
    (folder / "labels.csv").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--cifar", type=Path, help="write CIFAR-10 out instead of noise")
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), pictures(options.images, options.cifar))
        print(f"{options.images:,} PNG files, {os.cpu_count()} cores")
        print(f"{'start':8}{'seconds':>10}{'of CPU':>10}{'images/s':>12}{'load':>8}")
        for start in range(1, options.starts + 1):
            began, cpu_began = time.perf_counter(), time.process_time()
            read_image_csv(Path(folder))
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            rate, load = options.images / seconds, os.getloadavg()[0]
            print(f"{start:<8}{seconds:10.2f}{cpu_seconds:10.2f}{rate:12,.0f}{load:8.1f}")


if __name__ == "__main__":
    main()
