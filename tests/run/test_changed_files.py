"""Files of a run that were changed after they were written are refused, with the file and the command that helps."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from mnar.atomic_write import digest_of, sealed
from mnar.run import RunFolder, evaluate_run, read_run, resume_run
from mnar.run.calibration_file import read_calibration
from mnar.run.evaluate import read_weights
from mnar.run.model_file import read_model_input
from tests.support.equality import assert_same, assert_same_run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def read_split(run: Path) -> object:
    return RunFolder(run).split()


def arrays_of_calibration(run: Path) -> object:
    stored = read_calibration(run)
    return None if stored is None else digest_of(stored._asdict())


READERS: dict[str, tuple[Callable[[Path], object], ...]] = {
    "split.json": (read_split,),
    "calibration.npz": (arrays_of_calibration,),
    "model.safetensors": (read_model_input, read_weights),
}


@pytest.mark.parametrize("name", READERS)
def test_of_200_flipped_bits_each_gives_the_same_content_or_an_error_that_names_the_file(run: Path, name: str) -> None:
    path, dice = run / name, random.Random(0)
    whole, expected = path.read_bytes(), [read(run) for read in READERS[name]]
    num_found = 0
    for _ in range(200):
        content = bytearray(whole)
        content[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
        for read, wanted in zip(READERS[name], expected, strict=True):
            found, problem = content_or_problem(read, run)
            if problem is None:
                assert_same(_without_digests(found), _without_digests(wanted))
            else:
                num_found += 1
                assert re.fullmatch(rf".*{path}.*mnar train --resume.*|SafetensorError", problem)
    assert num_found > 100


def content_or_problem(read: Callable[[Path], object], run: Path) -> tuple[object, str | None]:
    try:
        return read(run), None
    except SafetensorError:  # `trained_network` turns this error into one line
        return None, "SafetensorError"
    except ValueError as error:
        return None, str(error)


def _without_digests(found: Any) -> Any:
    """The content without the digests: of a file whose entry "digest" has another name, the rest is unchanged."""
    if isinstance(found, dict) and "class_names" in found:
        return {name: value for name, value in found.items() if name in ("class_names", "labeled", "mean", "std")}
    return found


def test_a_changed_count_in_split_json_is_found_with_the_command_that_writes_the_file_again(run: Path) -> None:
    path = run / "split.json"
    split = json.loads(path.read_text())
    path.write_text(json.dumps({**split, "labeled": [count + 1 for count in split["labeled"]]}))
    refusal = rf"{path} is damaged: its content is not what was written.*remove it and run `mnar train --resume {run}`"
    for read in (read_run, resume_run):
        with pytest.raises(ValueError, match=refusal):
            read(run)


def test_a_changed_weight_is_found_and_resuming_writes_the_model_again(run: Path, finished_run: Path) -> None:
    path = run / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    weights = load_file(path)
    weights["head.bias"][0] += 1
    save_file(weights, path, metadata)
    with pytest.raises(ValueError, match=rf"the model in {path} is damaged .*digest does not match.*--resume {run}"):
        evaluate_run(run)
    resume_run(run)
    assert_same_run(run, finished_run)


def test_changed_probabilities_are_found_and_resuming_writes_calibration_npz_again(run: Path) -> None:
    path = run / "calibration.npz"
    whole = path.read_bytes()
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez(path, **{**arrays, "probs": arrays["probs"][:, ::-1]})
    with pytest.raises(ValueError, match=rf"{path} is damaged \(its content is not .*`mnar train --resume {run}`"):
        read_calibration(run)
    resume_run(run)
    assert path.read_bytes() == whole


def test_files_of_earlier_versions_have_no_digest_and_are_read(run: Path) -> None:
    split, scores = RunFolder(run).split(), evaluate_run(run)
    (run / "split.json").write_text(json.dumps(split))
    with safe_open(run / "model.safetensors", framework="pt") as file:
        written = json.loads(file.metadata()["mnar"])
    plain = {name: value for name, value in written.items() if "digest" not in name}
    save_file(load_file(run / "model.safetensors"), run / "model.safetensors", {"mnar": json.dumps(plain)})
    with np.load(run / "calibration.npz") as stored:
        arrays = {name: array for name, array in stored.items() if name != "digest"}
    np.savez(run / "calibration.npz", **arrays)
    assert RunFolder(run).split() == split
    assert evaluate_run(run) == scores
    assert read_calibration(run) is not None


def test_the_digest_of_a_record_does_not_depend_on_the_order_of_its_entries() -> None:
    record = {"b": [1, 2.5, None], "a": {"x": np.arange(3), "y": "text"}}
    assert sealed(record)["digest"] == sealed(dict(reversed(record.items())))["digest"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        (np.zeros(4, np.float32), np.zeros(4, np.int32)),
        (np.zeros((2, 2)), np.zeros(4)),
        (np.array([0.0]), np.array([-0.0])),
    ],
)
def test_values_of_another_type_or_shape_have_another_digest(one: object, other: object) -> None:
    assert digest_of({"value": one}) != digest_of({"value": other})
