"""`mnar inspect`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

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
