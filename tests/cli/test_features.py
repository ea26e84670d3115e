"""`mnar features`, and training on its file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.command import Mnar
from tests.support.own_data_files import NAMES, write_images


@pytest.fixture(autouse=True)
def network(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.AvgPool2d(4)\n")


@pytest.mark.usefixtures("without_report")
def test_a_model_can_be_trained_on_the_features_of_images(mnar: Mnar, tmp_path: Path) -> None:
    write_images(tmp_path / "photos")
    (tmp_path / "photos/003.png").write_bytes(b"damaged")
    computed = mnar("features", "photos", "--model", "my_network.py:make", "--scale", "none", "--out", "new/f.npy")
    assert computed.code == 0, computed.errors
    assert "35 samples with 1 features each: new/f.npy" in computed.output
    assert "inputs scaled with no scaling" in computed.output
    assert np.load("new/f.npy").shape == (35, 1)
    trained = mnar("train", "photos", "--features", "new/f.npy", "--fast", "--out", "runs/a")
    assert trained.code == 0, trained.errors
    with (tmp_path / "runs/a/predictions.csv").open(newline="") as file:
        predicted = {row["sample"]: row["label"] for row in csv.DictReader(file)}
    brightness = {name: np.asarray(Image.open(tmp_path / "photos" / name)).mean() for name in predicted}
    truth = {name: NAMES[round((mean - 50) / 70)] for name, mean in brightness.items()}
    assert np.mean([truth[name] == label for name, label in predicted.items()]) > 0.9


def test_an_existing_file_is_refused_and_wrong_options_are_errors(mnar: Mnar, tmp_path: Path) -> None:
    write_images(tmp_path / "photos")
    given = ("features", "photos", "--model", "my_network.py:make")
    assert mnar(*given).code == 0
    before = (tmp_path / "features.npy").read_bytes()
    refused = mnar(*given, "--mean", "0", "--std", "2")
    assert (refused.code, "--overwrite" in refused.errors) == (1, True)
    assert (tmp_path / "features.npy").read_bytes() == before
    assert mnar(*given, "--mean", "0", "--std", "2", "--overwrite").code == 0
    assert (tmp_path / "features.npy").read_bytes() != before
    for options, message in (
        (("--mean", "a"), "--mean is 'a'; give numbers separated by commas"),
        (("--scale", "half"), "unknown --scale 'half'; choose from auto, imagenet, data, none"),
        (("--device", "abacus", "--overwrite"), "--device is 'abacus'; choose cpu, cuda or auto"),
    ):
        refused = mnar(*given, *options)
        assert (refused.code, message in refused.errors) == (1, True)


def test_a_stop_after_the_last_row_costs_no_row(mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "photos")
    given = ("features", "photos", "--model", "my_network.py:make")
    real = Path.replace

    def stopped(path: Path, target: Path) -> Path:
        if target.name == "features.npy":
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        assert mnar(*given).code != 0
    left = (tmp_path / "features.npy.part").read_bytes()
    again = mnar(*given)
    assert (again.code, again.errors) == (0, "")
    assert (tmp_path / "features.npy").read_bytes() == left
    assert sorted(path.name for path in tmp_path.glob("features*")) == ["features.npy", "features.npy.json"]


@pytest.mark.usefixtures("without_report")
def test_a_model_of_features_labels_a_plain_folder_of_new_images_by_their_brightness(
    mnar: Mnar, tmp_path: Path
) -> None:
    """Without --like, the dark images alone would be scaled to a mean of 0, as images of all classes were."""
    write_images(tmp_path / "photos")
    assert mnar("features", "photos", "--model", "my_network.py:make").code == 0
    trained = mnar("train", "photos", "--features", "features.npy", "--fast", "--out", "runs/a")
    assert trained.code == 0, trained.errors
    (tmp_path / "new").mkdir()
    for number in range(6):
        Image.fromarray(np.full((8, 8), 40 + number, np.uint8)).save(tmp_path / f"new/{number}.png")
    computed = mnar("features", "new", "--model", "my_network.py:make", "--like", "features.npy", "--out", "new.npy")
    assert computed.code == 0, computed.errors
    assert "inputs scaled with the scaling of features.npy (mean 0." in computed.output
    for arguments in (("new", "--features", "new.npy"), ("new.npy",)):
        predicted = mnar("predict", "runs/a", *arguments, "--out", "labels.csv", "--overwrite")
        assert predicted.code == 0, predicted.errors
        with (tmp_path / "labels.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["label"] for row in rows] == ["ant"] * 6
        names = [f"{number}.png" for number in range(6)] if len(arguments) > 1 else [f"row {n}" for n in range(1, 7)]
        assert [row["sample"] for row in rows] == names
    (tmp_path / "new/6.png").write_bytes((tmp_path / "new/5.png").read_bytes())
    refused = mnar("predict", "runs/a", "new", "--features", "new.npy", "--overwrite")
    assert (refused.code, "new.npy has 6 rows, but new has 7 samples" in refused.errors) == (1, True)
    chosen = mnar("next", "runs/a", "--budget", "3", "--format", "label-studio", "--out", "tasks.json")
    assert chosen.code == 0, chosen.errors
    assert "--image-prefix" in chosen.output
    assert all(task["data"]["image"].endswith(".png") for task in json.loads((tmp_path / "tasks.json").read_text()))


def test_no_input_is_ever_replaced(mnar: Mnar, tmp_path: Path) -> None:
    write_images(tmp_path / "photos")
    given = ("features", "photos", "--model", "my_network.py:make", "--overwrite")
    assert mnar(*given, "--out", "old.npy").code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in ("my_network.py", "photos/000.png", "old.npy"):
        refused = mnar(*given, "--like", "old.npy", "--out", out)
        assert (refused.code, "which is not replaced" in refused.errors) == (1, True)
    assert {path: path.read_bytes() for path in before} == before
