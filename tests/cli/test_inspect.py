"""`mnar inspect`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.command import Mnar
from tests.support.own_data_files import write_images, write_table


def test_inspect_prints_and_writes_the_findings_about_a_table_and_about_features(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    inspected = mnar("inspect", "animals.csv", "--label", "kind", "--ignore", "length", "--unlabeled", "cat")
    assert inspected.code == 0, inspected.errors
    assert "150 rows, 105 with a label and 45 without; 2 classes" in inspected.output
    assert "Full results: inspect.json" in inspected.output
    written = json.loads((tmp_path / "inspect.json").read_text())
    assert [(found["name"], found["num_labels"]) for found in written["classes"]] == [("ant", 60), ("bee", 45)]
    assert re.search(f"--learner {written['recommendation']['learner']}\\s", inspected.output)

    write_images(tmp_path / "animals")
    np.save("features.npy", np.random.default_rng(0).normal(size=(36, 2)))
    inspected = mnar("inspect", "animals", "--features", "features.npy", "--out", "new/look.json", "--size", 6)
    assert inspected.code == 0, inspected.errors
    assert json.loads((tmp_path / "new/look.json").read_text())["kind"] == "features"


def test_the_output_path_is_checked_before_the_data_are_read(mnar: Mnar, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out, message in ((".", "is a folder; name the file to write"), ("notes.txt/look.json", "is a file and not a")):
        refused = mnar("inspect", "missing.csv", "--out", out)
        assert refused.code == 1
        assert message in refused.errors
        assert "missing.csv" not in refused.errors


def test_the_output_replaces_nothing_but_earlier_findings(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    write_images(tmp_path / "animals")
    np.save("features.npy", np.random.default_rng(0).normal(size=(36, 2)))
    (image,) = sorted((tmp_path / "animals").rglob("000.png"))
    (tmp_path / "link.json").symlink_to("animals.csv")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("seed: 1")
    (tmp_path / "other.json").write_text('{"mine": 1}')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for source, out in (
        ("animals.csv", "./animals.csv"),
        ("animals.csv", "link.json"),
        ("animals.csv", "run/config.yaml"),
        ("animals.csv", "other.json"),
        ("animals", "animals/labels.csv"),
        ("animals", image.relative_to(tmp_path)),
        ("animals", "features.npy"),
    ):
        features = () if source == "animals.csv" else ("--features", "features.npy")
        refused = mnar("inspect", source, *features, "--out", out)
        assert (refused.code, "was not written by `mnar inspect`" in refused.errors) == (1, True), refused.errors
        assert "choose another --out" in refused.errors
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_earlier_result_in_the_folder_of_the_data_is_replaced(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "animals")
    monkeypatch.chdir(tmp_path / "animals")
    for _ in range(2):
        inspected = mnar("inspect", ".", "--size", 6)
        assert inspected.code == 0, inspected.errors
    assert (tmp_path / "animals/inspect.json").exists()


def test_a_negative_seed_is_refused_with_its_range(mnar: Mnar) -> None:
    refused = mnar("inspect", "animals.csv", "--seed", "-1")
    assert (refused.code, "greater than or equal to 0" in refused.errors) == (2, True)
