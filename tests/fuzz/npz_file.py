"""Arrays in .npz files: half-labelled data of the user, and the fully labelled data set `npz`."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.reader import Reader, draw_no_report, stop_before_estimating, stop_before_training
from tests.fuzz.tokens import NPY_TOKENS
from tests.fuzz.zip_archive import mutated_archive
from tests.support.command import as_options

FEW_STEPS = (
    "engine.device=cpu",
    "model.name=mlp",
    "protocol.gamma=2",
    "train.batch_labeled=4",
    "train.batch_unlabeled=8",
    "train.eval_every=2",
    "train.save_every=2",
)
TRAINING = (
    *("train", "--dataset", "npz", "--data", "full.npz", "--learner", "supervised", "--iterations", "2"),
    *(*as_options(FEW_STEPS), "--out", "run"),
)
NUM_ROWS = 40


class NpzFile(Reader):
    name = "npz file"
    first_commands = (("inspect", "half.npz"), ("inspect", "images.npz"), TRAINING)

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        numbers = np.random.default_rng(0)
        y = np.arange(NUM_ROWS) % 3
        x = numbers.normal(size=(NUM_ROWS, 4)) + y[:, None]
        images = numbers.integers(0, 256, (NUM_ROWS, 8, 8, 3), np.uint8)
        holes = np.where(np.arange(NUM_ROWS) % 2, y, -1)
        self.arrays: dict[str, dict[str, Any]] = {
            "half.npz": {"x": x, "y": holes},
            "images.npz": {"x": images, "y": holes, "class_names": np.array(["ant", "bee", "cat"])},
            "full.npz": {"x_train": x, "y_train": y, "x_test": x, "y_test": y},
        }
        for name, arrays in self.arrays.items():
            (originals / name).write_bytes(_file(arrays))

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        name = rng.choice(list(self.arrays))
        content = (self.originals / name).read_bytes()
        if rng.random() < 0.4:
            content = _file(_changed_arrays(self.arrays[name], rng))
        else:
            content = mutated_archive(content, rng, NPY_TOKENS)
        (folder / name).write_bytes(content)
        return list(TRAINING) if name == "full.npz" else ["inspect", name]

    def stop_early(self) -> None:
        draw_no_report()
        stop_before_estimating()
        stop_before_training()


def _changed_arrays(arrays: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same arrays, one of them with another type, shape, name or value."""
    changed = dict(arrays)
    name = rng.choice(list(arrays))
    array = np.array(arrays[name])
    change = rng.choice(["type", "shape", "name", "value", "drop", "rows", "other"])
    if change == "type":
        kinds = ["f2", "f8", "i1", "u8", ">i4", "U5", "S3", "c8", "?", "M8[D]", "m8[s]", "V4"]
        with np.errstate(all="ignore"):
            try:
                changed[name] = array.astype(rng.choice(kinds))
            except (TypeError, ValueError):
                changed[name] = array.astype(str)
    elif change == "shape":
        changed[name] = rng.choice(
            [array.ravel(), array[None], array[..., None], array.T, array[:0], array[:2], array[0]]
        )
    elif change == "name":
        changed[rng.choice(["X", "Y", "x", "y", "classes", "class_names", "a/b", "x_train", "", "é"])] = changed.pop(
            name
        )
    elif change == "value":
        values = array.astype(object)
        odd = [np.nan, np.inf, -np.inf, 1e39, 1e300, -1, 2**31, 2**62, 0, 255, 99999]
        values.flat[rng.randrange(values.size)] = rng.choice(odd)
        changed[name] = np.array(values.tolist())
    elif change == "drop":
        del changed[name]
    elif change == "rows":
        changed[name] = array[: rng.randrange(len(array))] if array.ndim else array
    else:
        changed["more"] = rng.choice([np.float32(1), np.zeros((0, 3)), np.array("text"), np.zeros((2, 2, 2, 2, 2))])
    return changed


def _file(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{name or "_": array for name, array in arrays.items()})
    return buffer.getvalue()
