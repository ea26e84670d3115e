"""Every format of every kind of run predicts what `mnar.load(RUN)` predicts, with the code of example.py."""

from __future__ import annotations

import csv
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mnar.trained import load
from mnar.trained.export import Target
from tests.trained.export.conftest import ALL_FORMATS, Export, needs_onnx

# Runs an example as a script, in a process that cannot import mnar.
WITHOUT_MNAR = """
import runpy, sys
class NoMnar:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mnar":
            raise ImportError("mnar must not be imported")
sys.meta_path.insert(0, NoMnar())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def probabilities(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Predict the source with the functions of the exported example."""
    monkeypatch.delitem(sys.modules, "program", raising=False)  # that of another export
    monkeypatch.setattr(sys, "path", list(sys.path))
    example = runpy.run_path(str(folder / "example.py"))
    _, inputs = example["read_samples"](str(source))
    predicted: np.ndarray = example["load_model"]()(inputs)
    monkeypatch.delitem(sys.modules, "program", raising=False)
    return predicted


@pytest.mark.parametrize("to", ALL_FORMATS)
@pytest.mark.parametrize(
    ("run", "source"),
    [
        ("odd_run", "odd_table"),
        ("colour_run", "colour_photos"),
        ("features_run", "features_file"),
        ("table_network_run", "odd_table"),
    ],
)
def test_the_example_predicts_the_probabilities_of_the_run(
    request: pytest.FixtureRequest,
    exported: Export,
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    source: str,
    to: Target,
) -> None:
    folder, data = request.getfixturevalue(run), request.getfixturevalue(source)
    export = exported(folder, to)
    predicted = probabilities(export.folder, data, monkeypatch)
    expected = load(folder).predict_proba(data)
    assert predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    assert export.from_run <= 1e-5


@pytest.mark.parametrize("to", ALL_FORMATS)
@pytest.mark.parametrize("run", ["finished_run", "network_run"])  # of a benchmark, and of own images
def test_a_network_on_images_predicts_the_probabilities_of_the_run(
    request: pytest.FixtureRequest,
    exported: Export,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run: str,
    to: Target,
) -> None:
    folder = request.getfixturevalue(run)
    images = np.random.default_rng(0).integers(0, 256, (30, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "new.npz", x=images)
    predicted = probabilities(exported(folder, to).folder, tmp_path / "new.npz", monkeypatch)
    np.testing.assert_allclose(predicted, load(folder).predict_proba(images), atol=1e-5)


@pytest.mark.parametrize("to", ALL_FORMATS)
def test_the_example_runs_in_a_process_without_mnar(
    odd_run: Path, odd_table: Path, exported: Export, to: Target
) -> None:
    folder = exported(odd_run, to).folder
    command = [sys.executable, "-c", WITHOUT_MNAR, str(folder / "example.py"), str(odd_table)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    header, *rows = csv.reader(done.stdout.splitlines())
    assert header == ["sample", "label", "confidence"]
    probs = load(odd_run).predict_proba(odd_table)
    names = load(odd_run).inputs.class_names
    assert [row[1] for row in rows] == [names[c] for c in probs.argmax(1)]
    np.testing.assert_allclose([float(row[2]) for row in rows], probs.max(1), atol=1e-4)


@needs_onnx
def test_the_example_of_a_table_names_a_missing_column(odd_run: Path, exported: Export, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("weight;colour;shop\n1;red;shop 1\n")
    example = runpy.run_path(str(exported(odd_run, "onnx").folder / "example.py"))
    with pytest.raises(SystemExit, match="has no column 'year'"):
        example["read_samples"](str(tmp_path / "new.csv"))


@needs_onnx
def test_the_onnx_file_explains_itself_and_takes_any_batch_size(odd_run: Path, exported: Export) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(exported(odd_run, "onnx").folder / "model.onnx")
    assert [(one.name, one.shape) for one in session.get_inputs()] == [
        ("numbers", ["batch", 2]),
        ("categories", ["batch", 2]),
    ]
    assert [(one.name, one.shape) for one in session.get_outputs()] == [("probabilities", ["batch", 3])]
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["class_names"]) == list(load(odd_run).inputs.class_names)
    about = json.loads(metadata["preprocessing"])
    assert [column["name"] for column in about["categories"]] == ["colour", "shop"]
    for size in (1, 2, 7):
        numbers, codes = np.full((size, 2), np.nan), np.full((size, 2), -1)
        assert session.run(None, {"numbers": numbers, "categories": codes})[0].shape == (size, 3)
