"""Little half-labelled data as people bring them: most labels are of ants, and most of the rest are cats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.half_labeled import clouds_and_truth

LETTERS = "abcdef"
NAMES = ("ant", "bee", "cat")
TABLE_COUNTS = ((60, 45, 3), (5, 5, 32))  # with a label, and without
IMAGE_COUNTS = ((12, 8, 2), (2, 2, 10))


def write_table(path: Path, counts: tuple[tuple[int, ...], tuple[int, ...]] = TABLE_COUNTS) -> Path:
    """Two columns of numbers and one of words, the label in `kind`."""
    rng = np.random.default_rng(0)
    lines = ["weight,length,colour,kind"]
    for c, label in _shuffled(counts, rng):
        weight, length = rng.normal(c, 0.5, 2)
        lines.append(f"{weight:.3f},{length:.3f},{rng.choice(['red', 'blue'])},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_clouds(
    path: Path,
    num_labels: tuple[int, ...],
    num_pool: int = 60,
    *,
    distance: float = 4.0,
    more: dict[str, list[object]] | None = None,
) -> list[str]:
    """Write one cloud of rows per class, the label in `kind`, and further columns; return the classes of all rows.

    The rows with a label come first. The classes are named a, b, c ... in the order of `num_labels`.
    """
    samples, truth = clouds_and_truth(num_labels, num_pool, distance=distance)
    names = [LETTERS[c] for c in truth]
    more = more or {}
    lines = [",".join(["x", "y", "z", *more, "kind"])]
    for row, features in enumerate(samples.inputs.features):
        further = [str(column[row]) for column in more.values()]
        label = names[row] if samples.is_labeled[row] else ""
        lines.append(",".join([*(f"{value:.4f}" for value in features), *further, label]))
    path.write_text("\n".join(lines) + "\n")
    return names


def write_images(folder: Path, counts: tuple[tuple[int, ...], tuple[int, ...]] = IMAGE_COUNTS) -> Path:
    """Grey images of 8×8 pixels, the brighter the later the class, and a CSV file that names all of them."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    lines = ["path,label"]
    for number, (c, label) in enumerate(_shuffled(counts, rng)):
        name = f"{number:03}.png"
        Image.fromarray(rng.integers(70 * c, 70 * c + 100, (8, 8), np.uint8)).save(folder / name)
        lines.append(f"{name},{label}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def _shuffled(counts: tuple[tuple[int, ...], tuple[int, ...]], rng: np.random.Generator) -> list[tuple[int, str]]:
    """Class numbers, and labels with holes."""
    labeled, unlabeled = ([c for c, count in enumerate(of) for _ in range(count)] for of in counts)
    samples = [(c, NAMES[c]) for c in labeled] + [(c, "") for c in unlabeled]
    return [samples[place] for place in rng.permutation(len(samples))]
