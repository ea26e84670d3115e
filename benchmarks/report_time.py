"""Print the time and the size of the report of a CIFAR-10-sized run: 50,000 images, 10 classes, made-up predictions.

    python benchmarks/report_time.py
    python benchmarks/report_time.py --samples 50000 --classes 100 --side 32

The time includes the choice of the pictures and of the samples to label next, all estimates of the page and the writing
of the file. It does not include the training, the features and the predictions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from mnar.own_data.inspection.label_shift import AtRandomTest, Interval
from mnar.own_data.page.portfolio import own_data_page
from mnar.own_data.page.to_label import candidates_of, short_list
from mnar.own_data.portfolio.portfolio import Choice, TriedMember
from mnar.own_data.portfolio.scores import Comparison, Score, cross_validated
from mnar.own_data.portfolio_model import Predictions
from mnar.report import write_own_data_report
from mnar.types import DataSet

NUM_LABELS = 4000
NUM_REPEATS = 2
NUM_FEATURES = 256  # per image, for the choice of the samples to label next


def made_up_data(num_samples: int, num_classes: int, side: int, rng: np.random.Generator) -> DataSet:
    """Return images of smooth noise, which compress about as well as photos, and a few labels."""
    small = rng.integers(0, 256, (num_samples, 3, side // 4, side // 4), np.uint8)
    images = small.repeat(4, 2).repeat(4, 3) // 2 + rng.integers(0, 30, (num_samples, 3, side, side), np.uint8)
    y = np.full(num_samples, -1)
    y[:NUM_LABELS] = rng.integers(0, num_classes, NUM_LABELS)
    names = tuple(f"class {c}" for c in range(num_classes))
    return DataSet(
        train_x=torch.from_numpy(images),
        train_y=torch.from_numpy(y),
        test_x=torch.zeros(0, 3, side, side, dtype=torch.uint8),
        test_y=torch.zeros(0, dtype=torch.int64),
        class_names=names,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        fingerprint="50000-00000000",
        row_names=[f"images/{row:06}.png" for row in range(num_samples)],
    )


def made_up_choice(y: np.ndarray, num_classes: int, rng: np.random.Generator) -> Choice:
    """Return the outcome of a cross-validation that never took place."""
    probs = rng.dirichlet(np.full(num_classes, 0.1), (NUM_REPEATS, len(y)))
    shares = np.full(num_classes, 1 / num_classes)
    score = Score(0.8, 0.75, 0.85)
    members = [TriedMember(f"member {i}", "a made-up member", i % 2 > 0, i / 10, score, score, 3.0) for i in range(8)]
    return Choice(
        objective="balanced_accuracy",
        members=tuple(members),
        uses_pool=True,
        balanced_accuracy=score,
        accuracy=score,
        comparison=Comparison(Score(1.2, 1.1, 1.3), Score(0.02, -0.01, 0.05), len(y)),
        shares=Interval(shares, 0.8 * shares, 1.2 * shares),
        cross_validated=cross_validated(probs, probs, y, shares),
        recalls={"chosen": [score] * num_classes, "labels alone": [score] * num_classes},
        reason="member 7 (100%): made up",
        at_random=AtRandomTest(0.001, 100.0, "The test is made up."),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--side", type=int, default=32, help="pixels of each side of an image; a multiple of 4")
    options = parser.parse_args()
    if options.samples <= NUM_LABELS:
        parser.error(f"--samples must be more than {NUM_LABELS}, the number of labels")
    rng = np.random.default_rng(0)
    data = made_up_data(options.samples, options.classes, options.side, rng)
    y = data.train_y.numpy()
    choice = made_up_choice(y[y >= 0], options.classes, rng)
    pool = np.flatnonzero(y < 0)
    probs = rng.dirichlet(np.full(options.classes, 0.1), len(pool))
    predictions = Predictions(probs.argmax(1), probs.max(1), probs)
    candidates = candidates_of(len(pool), seed=0)
    features = rng.standard_normal((len(candidates) + NUM_LABELS, NUM_FEATURES), np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in ("first", "second"):
            start = time.perf_counter()
            to_label = short_list(
                probs[candidates],
                features[NUM_LABELS:],
                features[:NUM_LABELS],
                np.bincount(y[y >= 0], minlength=options.classes),
                choice.shares,
                data.class_names,
                candidates,
            )
            page = own_data_page(
                "images", data, choice, "it is made up", (), pool, predictions, folder=folder, to_label=to_label
            )
            write_own_data_report(folder, page)
            seconds, size = time.perf_counter() - start, (folder / "report.html").stat().st_size
            print(
                f"{len(y):,} images of {options.side}x{options.side} pixels, {options.classes} classes, "
                f"{number} report of this process: {seconds:.2f} s, {size / 1e6:.2f} MB"
            )


if __name__ == "__main__":
    main()
