"""A run folder with a damaged or foreign file is refused in one line that names the file and the remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import mnar
from mnar.run import evaluate_run, model_file
from mnar.run.calibration_file import CalibrationData, read_calibration, write_calibration

OLDER_RUNS = Path(__file__).parents[1] / "fixtures" / "runs_of_version_0.1.0"


def assert_refused(folder: Path, name: str, problem: str, load: Callable[[Path], object] = mnar.load) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the whole message is compared below
        load(folder)
    message = str(refused.value)
    assert f"{folder / name} is damaged" in message
    assert problem in message
    assert message.endswith(f"again with `mnar train --resume {folder}`")
    assert "\n" not in message
    assert len(message) < 400 + 2 * len(str(folder))


# --- calibration.npz ---

GOOD = CalibrationData(
    np.array([0, 1, 2, 0]),
    np.full((4, 3), 1 / 3, np.float32),
    np.array([4, 3, 0]),
    2,
    np.array([[0.75, 0.25, np.nan], [0.5, 0.1, 0], [0.9, 0.4, 1]]),
)


def arrays_of(data: CalibrationData) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in data._asdict().items()}


def test_a_calibration_file_gives_back_what_was_written(tmp_path: Path) -> None:
    for written in (GOOD, CalibrationData(GOOD.y[:0], GOOD.probs[:0], GOOD.num_labels)):
        write_calibration(tmp_path, written)
        for read in (read_calibration(tmp_path), read_calibration(tmp_path, 3)):
            assert read is not None
            for value, before in zip(read, written, strict=True):
                np.testing.assert_array_equal(value, before)  # type: ignore[arg-type]


def with_value(array: npt.NDArray[Any], place: Any, value: float) -> npt.NDArray[Any]:
    changed = array.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"y": GOOD.y[:3]}, "y has shape (3,)"),
        ({"y": GOOD.y.astype(float)}, "type float64, not one whole number"),
        ({"y": with_value(GOOD.y, 0, 3)}, "not classes from 0 to 2"),
        ({"y": with_value(GOOD.y, 0, -1)}, "not classes from 0 to 2"),
        ({"probs": np.array(0.5)}, "probs has shape ()"),
        ({"probs": GOOD.probs[0]}, "probs has shape (3,)"),
        ({"probs": np.ones((4, 3), int)}, "type int64, not one float per sample and class"),
        ({"probs": with_value(GOOD.probs, 0, np.nan)}, "not probabilities that sum to 1"),
        ({"probs": GOOD.probs * 2}, "not probabilities that sum to 1"),
        ({"probs": np.tile([1.5, -0.5, 0], (4, 1))}, "not probabilities that sum to 1"),
        ({"num_labels": np.array([1, 2])}, "num_labels is not one number of labels for each of the 3 classes"),
        ({"num_labels": np.array([1, 2, -3])}, "num_labels is not"),
        ({"num_labels": np.array([1, 2, np.nan])}, "num_labels is not"),
        ({"repeats": np.array(3)}, "repeats is 3, which does not divide the 4 rows"),
        ({"repeats": np.array(0)}, "repeats is 0"),
        ({"repeats": np.array([1, 2])}, "repeats is not a whole number"),
        ({"repeats": np.array(2.5)}, "repeats is not a whole number"),
        ({"pool_shares": np.ones((2, 3))}, "pool_shares has shape (2, 3)"),
        ({"pool_shares": with_value(GOOD.pool_shares, 0, 0)}, "not shares from 0 to 1"),  # type: ignore[arg-type]
        ({"pool_shares": with_value(GOOD.pool_shares, 0, np.nan)}, "not shares from 0"),  # type: ignore[arg-type]
        ({"pool_shares": with_value(GOOD.pool_shares, (1, 0), np.nan)}, "not shares"),  # type: ignore[arg-type]
        ({"pool_shares": with_value(GOOD.pool_shares, (2, 1), 5)}, "not shares from 0"),  # type: ignore[arg-type]
        ({"surprise": np.ones(3)}, "not a complete .npz file of the arrays that mnar writes"),
    ],
)
def test_a_calibration_file_with_an_impossible_array_is_refused_with_its_name(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    np.savez(tmp_path / "calibration.npz", **{**arrays_of(GOOD), **change})
    assert_refused(tmp_path, "calibration.npz", problem, read_calibration)


@pytest.mark.parametrize("missing", ["y", "probs", "num_labels"])
def test_a_calibration_file_without_an_array_is_refused(tmp_path: Path, missing: str) -> None:
    np.savez(tmp_path / "calibration.npz", **{n: array for n, array in arrays_of(GOOD).items() if n != missing})
    assert_refused(tmp_path, "calibration.npz", "not a complete .npz file", read_calibration)


def test_a_single_array_and_a_cut_file_are_no_calibration_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.npz"
    with path.open("wb") as file:
        np.save(file, GOOD.y)
    assert_refused(tmp_path, "calibration.npz", "not a complete .npz file", read_calibration)
    write_calibration(tmp_path, GOOD)
    path.write_bytes(path.read_bytes()[:-30])
    assert_refused(tmp_path, "calibration.npz", "not a complete .npz file", read_calibration)


@pytest.mark.parametrize("run", ["finished_run", "table_run"])  # a network and a portfolio
def test_a_calibration_file_of_another_number_of_classes_is_refused(
    run: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(run), tmp_path / "run"))
    two = CalibrationData(np.array([0, 1]), np.full((2, 2), 0.5), np.array([4, 3]))
    write_calibration(folder, two)
    assert_refused(folder, "calibration.npz", "the model has")


# --- model.safetensors of a network, and the metadata that every model file has ---


def rewritten(run: Path, folder: Path, change: Callable[[dict[str, Any]], object], **metadata: Any) -> Path:
    """Copy the run, with other tensors or other metadata in its model file."""
    shutil.copytree(run, folder)
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        written = json.loads(file.metadata()["mnar"])
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, model_file.metadata({**written, **metadata}, tensors))  # with valid digests
    return folder


def no_change(tensors: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"input_shape": "1, 8, 8"}, "input_shape is 1, 8, 8, not a list"),
        ({"input_shape": []}, "input_shape is []"),
        ({"input_shape": [1, 8]}, "input_shape is [1, 8]"),
        ({"input_shape": [1, 8, -8]}, "input_shape is [1, 8, -8]"),
        ({"input_shape": [1, 8, 8.0]}, "input_shape is [1, 8, 8.0]"),
        ({"input_shape": [1, 10**6, 10**6]}, "input_shape is [1, 1000000, 1000000]"),
        ({"class_names": "abc"}, "class_names is abc, not a list of at least two texts"),
        ({"class_names": ["a"]}, "class_names is ['a']"),
        ({"class_names": [1, 2]}, "class_names is [1, 2]"),
        ({"class_names": None}, "class_names is None"),
        ({"mean": 0.5}, "mean is 0.5"),
        ({"mean": [0.5, 0.5]}, "mean is [0.5, 0.5], not a list of 1 finite numbers"),
        ({"mean": ["a"]}, "mean is ['a']"),
        ({"mean": [float("nan")]}, "mean is [nan]"),
        ({"std": [float("inf")]}, "std is [inf]"),
        ({"std": [0.0]}, "std is [0.0], not a list of positive numbers"),
        ({"std": [10**400]}, "std is [1000"),
        ({"encoding": [1]}, "encoding is not a dict"),
        ({"encoding": {"means": []}}, "encoding is not a dict"),
    ],
)
def test_impossible_metadata_of_a_model_file_are_refused_with_their_name(
    finished_run: Path, tmp_path: Path, metadata: dict[str, Any], problem: str
) -> None:
    folder = rewritten(finished_run, tmp_path / "run", no_change, **metadata)
    assert_refused(folder, "model.safetensors", problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"means": ["a"]}, "encoding.means is ['a']"),
        ({"means": []}, "encoding.means is []"),
        ({"stds": [0.0]}, "encoding.stds is [0.0], not a list of positive numbers"),
        ({"numeric_names": 5}, "encoding.numeric_names is 5"),
        ({"numeric_names": ["colour"]}, "two columns of the same name"),
        ({"levels": ["red", "blue"]}, "encoding.levels is ['red', 'blue']"),
        ({"num_levels_alone": [5]}, "encoding.num_levels_alone is [5]"),
        ({"num_levels_alone": [1]}, "encoding gives 2 features, but input_shape is [3]"),
        ({"had_others": ["no"]}, "encoding.had_others is ['no']"),
        ({"numeric_had_missing": [True]}, "encoding gives 4 features, but input_shape is [3]"),
    ],
)
def test_an_impossible_encoding_of_a_table_is_refused_with_its_entry(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with safe_open(OLDER_RUNS / "own" / "model.safetensors", framework="pt") as file:
        encoding = json.loads(file.metadata()["mnar"])["encoding"]
    folder = rewritten(OLDER_RUNS / "own", tmp_path / "run", no_change, encoding={**encoding, **change})
    assert_refused(folder, "model.safetensors", problem)


def test_a_run_of_version_0_1_0_predicts_new_rows() -> None:
    probs = mnar.load(OLDER_RUNS / "own").predict_proba({"weight": ["0.5", "3"], "colour": ["red", "blue"]})
    assert probs.shape == (2, 2)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)


def set_nan(tensors: dict[str, Any]) -> None:
    tensors["head.weight"][0, 0] = torch.nan


def shrink_all(tensors: dict[str, Any]) -> None:
    tensors.update({name: tensor.flatten()[:1].clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_nan, "the tensor head.weight contains values that are not finite numbers"),
        (shrink_all, "Error(s) in loading state_dict"),
        (lambda tensors: tensors.pop("head.bias"), 'Missing key(s) in state_dict: "head.bias"'),
    ],
)
@pytest.mark.parametrize("use", [mnar.load, evaluate_run])
def test_tensors_that_are_not_finite_or_do_not_fit_are_refused_in_one_short_line(
    finished_run: Path, tmp_path: Path, use: Callable[[Path], object], change: Callable[..., object], problem: str
) -> None:
    assert_refused(rewritten(finished_run, tmp_path / "run", change), "model.safetensors", problem, use)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("filters", lambda array: torch.cat([array, array], 1), "encoder.images.filters has shape"),
        ("filters", lambda array: array / 0, "encoder.images.filters contains values that are not finite"),
        ("offset", lambda array: array[:1].clone(), "encoder.images.offset has shape (1,)"),
        ("scale", lambda array: array[:1].clone(), "encoder.images.scale has shape (1,)"),
        ("components", lambda array: array[:-1].clone(), "encoder.images.mean has shape"),
        ("components", lambda array: array[:, :-1].clone(), "has shape"),  # of a member, which takes more features
    ],
)
def test_a_damaged_encoder_of_images_is_refused_with_the_name_of_the_array(
    digits_run: Path, tmp_path: Path, name: str, change: Callable[[Any], Any], problem: str
) -> None:
    def change_one(tensors: dict[str, Any]) -> None:
        tensors[f"encoder.images.{name}"] = change(tensors[f"encoder.images.{name}"])

    assert_refused(rewritten(digits_run, tmp_path / "run", change_one), "model.safetensors", problem)


@pytest.mark.parametrize("names", [["a"] * 10, ["", *"bcdefghij"]])
def test_classes_that_cannot_be_told_apart_by_name_are_refused(
    finished_run: Path, tmp_path: Path, names: list[str]
) -> None:
    folder = rewritten(finished_run, tmp_path / "run", no_change, class_names=names)
    with pytest.raises(ValueError, match=r"model\.safetensors have the same name, or a class has none.*train again"):
        mnar.load(folder)


def test_a_folder_in_the_place_of_the_model_is_refused(finished_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert_refused(folder, "model.safetensors", "is damaged")


@pytest.mark.parametrize("metadata", [None, {"other": "x"}, {"mnar": "{"}, {"mnar": "[1]"}, {"mnar": "[" * 100_000}])
def test_a_model_file_of_another_program_is_refused(
    finished_run: Path, tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    save_file({"w": torch.zeros(1)}, folder / "model.safetensors", metadata)
    assert_refused(folder, "model.safetensors", "is damaged")
