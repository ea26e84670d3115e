from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mnar.datasets.user_files import PartlyLabeled, Table, read_data
from mnar.datasets.user_files.oddities import oddities

NAMES = ("cat", "dog")


def data_of(x: np.ndarray | Table, y: list[int]) -> PartlyLabeled:
    return PartlyLabeled(x, np.array(y), NAMES, [f"line {row + 2}" for row in range(len(y))])


X = np.array([[1, 0.0], [2, 5], [1, -0.0], [1, np.nan], [1, np.nan], [3, 3], [3, 3], [2, 5]])
Y = [0, 0, 1, 1, 1, 0, -1, 0]


@pytest.mark.parametrize("kind", ["table", "features", "categories"])
def test_equal_rows_with_different_labels_are_counted_as_by_hand(kind: str) -> None:
    numbers = Table.of_numbers(X)
    codes = np.nan_to_num(X, nan=-1).astype(np.int64)
    categories = Table(np.empty((len(X), 0)), codes, (), ("a", "b"), (tuple("0123"), tuple("012345")))
    x = {"table": numbers, "features": X.astype(np.float32), "categories": categories}[kind]
    (note,) = oddities(data_of(x, Y))
    assert note.startswith(
        "2 labelled samples are equal to a sample with another label, such as line 2 (cat) and line 4 (dog); "
    )


def test_equal_rows_with_one_label_and_rows_that_differ_in_order_are_not_pointed_out() -> None:
    x = np.array([[1.0, 2], [2, 1], [1, 2]])
    assert oddities(data_of(Table.of_numbers(x), [0, 1, 0])) == []


def test_random_tables_have_no_false_alarm_and_every_true_one() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (600, 4)).astype(float), rng.integers(0, 2, 600)
    labels_of_row: dict[tuple[float, ...], set[int]] = {}
    for row, label in zip(map(tuple, x.tolist()), y.tolist(), strict=True):
        labels_of_row.setdefault(row, set()).add(label)
    expected = sum(len(labels_of_row[tuple(row)]) > 1 for row in x.tolist())
    (note,) = oddities(data_of(Table.of_numbers(x), y.tolist()))
    assert note.startswith(f"{expected} labelled samples are equal")


def test_equal_images_with_different_labels_and_images_of_one_colour_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (8, 8, 3), np.uint8)
    almost = np.zeros((8, 8, 3), np.uint8)
    almost[7, 7, 2] = 1
    images = {"a": noise, "b": noise, "black": np.zeros_like(noise), "red": noise * 0 + [255, 0, 0], "c": almost}
    for name, pixels in images.items():
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\nb.png,dog\nblack.png,cat\n")
    notes = read_data(tmp_path).notes
    assert any(
        "2 labelled samples are equal to a sample with another label, such as a.png (cat) and b.png" in n for n in notes
    )
    assert any(note.startswith("2 images have the same colour everywhere: black.png, red.png; ") for note in notes)
