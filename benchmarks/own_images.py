"""The portfolio on half-labelled images, compared with classifiers of the labels alone.

    python benchmarks/own_images.py --data DIR --out own_images.jsonl            # every set, mix and seed
    python benchmarks/own_images.py --data DIR --out own_images.jsonl --table    # print the results so far

The sets are images of Fashion-MNIST, of CIFAR-10 and of ten classes of mini-ImageNet (resized to 64 x 64 pixels), in
their standard layouts under DIR. The labels are skewed: in a random order of the classes, class c has a share
proportional to 20^(-c/(k-1)). The pool has equal shares, the same shares as the labels, or the reversed ones. The score
is the balanced accuracy on the pool. Each case is one line of the file, and a case that the file contains is not run
again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.cifar import cifar10
from mnar.datasets.mnist import FILES, read_idx
from mnar.own_data.inspection.image_probe import PatchFilters
from mnar.own_data.portfolio import Inputs, Samples, fit_portfolio, members_for
from mnar.own_data.portfolio.image_features import image_inputs
from mnar.own_data.portfolio.network import fit_network

Images = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
GAMMA = 20.0
NUM_PHOTO_CLASSES = 10
PHOTO_SIDE = 64
NETWORK_STEPS = 600
MIXES = ("uniform", "same", "reversed")


class Set(NamedTuple):
    """One row of the table."""

    source: str
    num_images: int
    num_labels: int


SETS = (
    Set("Fashion-MNIST", 1000, 200),
    Set("Fashion-MNIST", 3000, 400),
    Set("CIFAR-10", 1000, 200),
    Set("CIFAR-10", 3000, 400),
    Set("mini-ImageNet", 3000, 400),
)


def fashion_mnist(root: Path, seed: int) -> tuple[Images, Integers]:
    """Return the training images of Fashion-MNIST."""
    images, labels = (read_idx(root / "FashionMNIST/raw" / name, n) for name, n in zip(FILES[:2], (3, 1), strict=True))
    return images[:, None], labels.astype(np.int64)


def cifar(root: Path, seed: int) -> tuple[Images, Integers]:
    """Return the training images of CIFAR-10."""
    data = cifar10(root)
    return data.train_x.numpy(), data.train_y.numpy()


def photographs(root: Path, seed: int) -> tuple[Images, Integers]:
    """Return the training images of ten random classes of mini-ImageNet."""
    from PIL import Image

    folders = sorted((root / "mini-imagenet/train").iterdir())
    chosen = np.random.default_rng(seed).permutation(len(folders))[:NUM_PHOTO_CLASSES]
    paths = [(path, c) for c, number in enumerate(chosen) for path in sorted(folders[number].glob("*.jpg"))]

    def pixels(path: Path) -> npt.NDArray[Any]:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.BOX))

    images = np.stack([pixels(path) for path, _ in paths]).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), np.array([c for _, c in paths])


SOURCES: dict[str, Callable[[Path, int], tuple[Images, Integers]]] = {
    "Fashion-MNIST": fashion_mnist,
    "CIFAR-10": cifar,
    "mini-ImageNet": photographs,
}


class Case(NamedTuple):
    """Images with the truth, and which of them have a label."""

    images: Images
    truth: Integers
    is_labeled: npt.NDArray[np.bool_]

    @property
    def y(self) -> Integers:
        return np.where(self.is_labeled, self.truth, -1)


def draw(images: Images, y: Integers, chosen: Set, mix: str, seed: int) -> Case:
    """Draw labelled images with skewed classes, and a pool with the given mix."""
    rng = np.random.default_rng(seed)
    num_classes = int(y.max()) + 1
    rank = rng.permutation(num_classes)
    skewed = GAMMA ** -(rank / (num_classes - 1))
    shares = {"uniform": np.ones(num_classes), "same": skewed, "reversed": 1 / skewed}[mix]
    of_class = [rng.permutation(np.flatnonzero(y == c)) for c in range(num_classes)]
    num_labeled = counts(skewed, chosen.num_labels, [len(rows) - 1 for rows in of_class])
    left = [len(rows) - n for rows, n in zip(of_class, num_labeled, strict=True)]
    num_pool = counts(shares, chosen.num_images - chosen.num_labels, left)
    labeled = np.concatenate([rows[:n] for rows, n in zip(of_class, num_labeled, strict=True)])
    pool = np.concatenate([rows[n : n + m] for rows, n, m in zip(of_class, num_labeled, num_pool, strict=True)])
    rows = rng.permutation(np.concatenate([labeled, pool]))
    return Case(np.ascontiguousarray(images[rows]), y[rows], np.isin(rows, labeled))


def counts(shares: npt.NDArray[np.float64], total: int, most: list[int]) -> Integers:
    """Return the number of images of each class, at least 2 and at most `most`."""
    return np.clip(np.round(total * shares / shares.sum()).astype(np.int64), 2, most)


def balanced_accuracy(case: Case, predicted: Integers) -> float:
    """Return the balanced accuracy on the pool, in percent; `predicted` has the classes of the pool."""
    truth = case.truth[~case.is_labeled]
    return 100 * float(np.mean([(predicted[truth == c] == c).mean() for c in np.unique(truth)]))


def raw_pixels(images: Images) -> npt.NDArray[np.float32]:
    """Return all pixels in 0 to 1, [n, d]."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def hog(images: Images, *, cell: int = 8, num_directions: int = 9) -> npt.NDArray[np.float32]:
    """Return histograms of oriented gradients (Dalal and Triggs, 2005) in cells of 8 x 8 pixels, [n, d]."""
    grey = images.mean(1)
    dx, dy = np.zeros_like(grey), np.zeros_like(grey)
    dx[:, :, 1:-1] = grey[:, :, 2:] - grey[:, :, :-2]
    dy[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
    strength, angle = np.hypot(dx, dy), np.arctan2(dy, dx) % np.pi
    number = np.minimum((angle / np.pi * num_directions).astype(int), num_directions - 1)
    rows, columns = grey.shape[1] // cell, grey.shape[2] // cell
    cells = np.zeros((len(grey), rows, columns, num_directions))
    for direction in range(num_directions):
        votes = np.where(number == direction, strength, 0)[:, : rows * cell, : columns * cell]
        cells[..., direction] = votes.reshape(len(grey), rows, cell, columns, cell).mean((2, 4))
    corners = [cells[:, i : rows - 1 + i, j : columns - 1 + j] for i in (0, 1) for j in (0, 1)]
    blocks = np.concatenate(corners, axis=3)  # every block has 2 x 2 cells
    blocks /= np.linalg.norm(blocks, axis=3, keepdims=True) + 1e-6
    return blocks.reshape(len(grey), -1).astype(np.float32)


def support_vectors(features: Callable[[Images], npt.NDArray[np.float32]]) -> Callable[[Case], Integers]:
    """Return a function that fits scikit-learn's SVC to features of the labelled images and predicts the pool."""

    def predict(case: Case) -> Integers:
        from sklearn.svm import SVC

        x = features(case.images)
        model = SVC(C=10.0, class_weight="balanced").fit(x[case.is_labeled], case.truth[case.is_labeled])
        return np.asarray(model.predict(x[~case.is_labeled]))

    return predict


def regression_on_patches(case: Case) -> Integers:
    """Predict the pool with a logistic regression with balanced classes, on the features that `mnar inspect` uses."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rows = np.arange(len(case.images))
    x = StandardScaler().fit_transform(PatchFilters.fit(case.images, rows).features(case.images, rows))
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=200)
    return np.asarray(model.fit(x[case.is_labeled], case.truth[case.is_labeled]).predict(x[~case.is_labeled]))


def small_network(case: Case) -> Integers:
    """Predict the pool with the small network, trained on the labels alone."""
    no_features = np.zeros((len(case.images), 1), np.float32)
    samples = Samples(Inputs(no_features, case.images), case.y, int(case.truth.max()) + 1)
    fitted = fit_network(samples, uses_pool=False, iterations=NETWORK_STEPS)
    return fitted.probs(samples.inputs.rows(np.flatnonzero(~case.is_labeled))).argmax(1)


def portfolio(case: Case) -> Integers:
    """Predict the pool with the portfolio."""
    inputs, _ = image_inputs(case.images)
    samples = Samples(inputs, case.y, int(case.truth.max()) + 1)
    chosen = fit_portfolio(samples, members_for(samples))
    return chosen.probs(inputs.rows(np.flatnonzero(~case.is_labeled))).argmax(1)


METHODS: dict[str, Callable[[Case], Integers]] = {
    "portfolio": portfolio,
    "SVC, pixels": support_vectors(raw_pixels),
    "SVC, HOG": support_vectors(hog),
    "logistic regression, patches": regression_on_patches,
    "small network": small_network,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="file of the results, one line per case")
    parser.add_argument("--sources", nargs="+", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--images", nargs="+", type=int, default=[1000, 3000], help="only sets of these sizes")
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=MIXES)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--table", action="store_true", help="only print the results so far")
    arguments = parser.parse_args()
    if not arguments.table:
        if arguments.data is None:
            parser.error(
                "--data is missing; name the folder that contains cifar-10-batches-py, FashionMNIST/raw and "
                "mini-imagenet"
            )
        run_all(arguments)
    print_table(lines_of(arguments.out))


def run_all(arguments: argparse.Namespace) -> None:
    """Run every case that the file does not contain yet."""
    done = {(line["source"], line["num_images"], line["mix"], line["seed"]) for line in lines_of(arguments.out)}
    for seed in arguments.seeds:
        for source in arguments.sources:
            jobs = [
                (chosen, mix)
                for chosen in SETS
                for mix in arguments.mixes
                if chosen.source == source
                and chosen.num_images in arguments.images
                and (source, chosen.num_images, mix, seed) not in done
            ]
            images, y = SOURCES[source](arguments.data, seed) if jobs else (np.zeros(0), np.zeros(0))
            for chosen, mix in jobs:
                case = draw(images, y, chosen, mix, seed)
                line = {**chosen._asdict(), "mix": mix, "seed": seed, **figures_of(case)}
                with arguments.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)


def figures_of(case: Case) -> dict[str, Any]:
    """Return the score of every method, and the seconds that it took."""
    scores, seconds = {}, {}
    for name, predict in METHODS.items():
        start = time.monotonic()
        scores[name] = round(balanced_accuracy(case, predict(case)), 2)
        seconds[name] = round(time.monotonic() - start, 1)
    return {"scores": scores, "seconds": seconds}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print the mean scores over the seeds, and how much the portfolio is above the best baseline."""
    names = list(METHODS)
    print(
        "| images, labels | pool | seeds | " + " | ".join(names) + " | above the best baseline | seconds of the fit |"
    )
    print("| --- " * (len(names) + 5) + "|")
    for chosen in SETS:
        for mix in MIXES:
            key = {**chosen._asdict(), "mix": mix}
            cases = [line for line in lines if all(line[name] == value for name, value in key.items())]
            if not cases:
                continue
            means = [statistics.mean(line["scores"][name] for line in cases) for name in names]
            seconds = statistics.mean(line["seconds"]["portfolio"] for line in cases)
            cells = [f"{chosen.source}, {chosen.num_images:,}, {chosen.num_labels}", mix, str(len(cases))]
            cells += [f"{mean:.1f}" for mean in means]
            cells += [f"{means[0] - max(means[1:]):+.1f}", f"{seconds:.0f}"]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
