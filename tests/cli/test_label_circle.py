"""The circle on digits with simulated annotators: `mnar train`, `mnar next`, label, `mnar merge`, `mnar train`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score

from mnar.datasets.user_files import read_data
from tests.support.command import Mnar

BUDGET = 30
DIGITS = load_digits()
IMAGES, TRUTH = DIGITS.images[::2], DIGITS.target[::2]  # half of them, so that a round takes a few seconds


def labels_missing_not_at_random() -> Any:
    """Whether each image keeps its label: one of each digit at least, and many of the low digits."""
    keeps = np.random.default_rng(0).random(len(TRUTH)) < 0.2 * 0.75**TRUTH
    keeps[[np.flatnonzero(digit == TRUTH)[0] for digit in range(10)]] = True
    return keeps


def number_in(name: str) -> int:
    """The number of the image that a path or an id names."""
    return int(Path(name).stem.removeprefix("digit-"))


def write_table(path: Path) -> None:
    keeps = labels_missing_not_at_random()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["key", *(f"pixel {number}" for number in range(64)), "digit"])
        for number, image in enumerate(IMAGES):
            pixels = [int(value) for value in image.flat]
            table.writerow([f"digit-{number}", *pixels, TRUTH[number] if keeps[number] else ""])


def write_class_folders(folder: Path) -> None:
    keeps = labels_missing_not_at_random()
    for number, image in enumerate(IMAGES):
        path = folder / (str(TRUTH[number]) if keeps[number] else "unlabeled") / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(path)


def annotate_csv(path: Path) -> list[int]:
    """Fill in the column `label`, and return the numbers of the images."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["label"] = str(TRUTH[number_in(row["key"])])
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return [number_in(row["key"]) for row in rows]


def annotate_tasks(path: Path) -> list[int]:
    """Turn tasks into an export of Label Studio, and return the numbers of the images."""
    tasks = json.loads(path.read_text())
    for number, task in enumerate(tasks):
        (choice,) = task["predictions"][0]["result"]
        answer = {**choice, "value": {"choices": [str(TRUTH[number_in(task["data"]["sample"])])]}}
        task |= {"id": number, "annotations": [{"id": number, "was_cancelled": False, "result": [answer]}]}
    path.write_text(json.dumps(tasks))
    return [number_in(task["data"]["sample"]) for task in tasks]


def predictions(run: Path) -> dict[int, int]:
    with (run / "predictions.csv").open(newline="") as file:
        return {number_in(row[1]): int(row[2]) for row in list(csv.reader(file))[1:]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "class folders"])
def test_the_labels_that_next_asks_for_make_the_next_model_better(kind: str, mnar: Mnar, tmp_path: Path) -> None:
    if kind == "table":
        data, reading = tmp_path / "digits.csv", {"label": "digit", "id": "key"}
        write_table(data)
        to_label, export = tmp_path / "to_label.csv", ()
    else:
        data, reading = tmp_path / "digits", {}
        write_class_folders(data)
        to_label, export = tmp_path / "tasks.json", ("--format", "label-studio")
    options = [word for name, value in reading.items() for word in (f"--{name}", value)]

    def run(*arguments: object) -> None:
        done = mnar(*arguments)
        assert done.code == 0, done.errors

    before = read_data(data, **reading)
    run("train", data, *options, "--fast", "--out", "runs/first")
    run("next", "runs/first", "--budget", BUDGET, "--out", to_label, *export)
    asked = annotate_csv(to_label) if kind == "table" else annotate_tasks(to_label)
    run("merge", data, to_label, *options)
    run("train", data, *options, "--fast", "--out", "runs/second")

    after = read_data(data, **reading)
    assert len(set(asked)) == BUDGET == after.is_labeled.sum() - before.is_labeled.sum()
    names = after.row_names if after.ids is None else after.ids
    digit = [int(after.class_names[c]) for c in after.y[after.is_labeled]]
    assert digit == TRUTH[[number_in(name) for name, has in zip(names, after.is_labeled, strict=True) if has]].tolist()
    first, second = predictions(tmp_path / "runs/first"), predictions(tmp_path / "runs/second")
    assert first.keys() - second.keys() == set(asked)
    rest = sorted(second)
    scores = [balanced_accuracy_score(TRUTH[rest], [labels[number] for number in rest]) for labels in (first, second)]
    assert scores[1] > scores[0] + 0.01, scores
