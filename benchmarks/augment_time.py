"""How long one view of a batch takes: python benchmarks/augment_time.py [--device cuda] [--compile] [--threads 2]"""

from __future__ import annotations

import argparse

import torch
from torch.utils.benchmark import Timer

from mnar.augment import VIEWS, Augment

BATCHES = {
    "digits, 224 x 1 x 8 x 8": (224, 1, 8, 8),
    "CIFAR, 448 x 3 x 32 x 32": (448, 3, 32, 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="time torch.compile's version of it")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    print(f"{'batch':28}{'view':10}{'median ms':>10}{'fastest':>10}")
    for batch, shape in BATCHES.items():
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=options.device)
        views = Augment((0.5,) * shape[1], (0.25,) * shape[1]).to(options.device)
        augment = torch.compile(views, fullgraph=True) if options.compile else views
        for view in VIEWS:
            timer = Timer(
                "augment(images, view)",
                globals={"augment": augment, "images": images, "view": view},
                num_threads=options.threads,
            )
            measured = timer.blocked_autorange(min_run_time=1)
            milliseconds = [1000 * seconds for seconds in (measured.median, min(measured.times))]
            print(f"{batch:28}{view:10}" + "".join(f"{value:10.3f}" for value in milliseconds))


if __name__ == "__main__":
    main()
