"""Run folders that version 0.1.0 wrote still resume, evaluate and report.

They use three former names: the guidance key `after`, the data set `own` and the protocol `found`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mnar.own_data.train import resume_own_data
from mnar.report import write_report
from mnar.run import Display, RunFolder, evaluate_run, read_run, read_runs, resume_run

RUNS = Path(__file__).parents[1] / "fixtures" / "runs_of_version_0.1.0"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def test_a_stopped_run_resumes_to_the_metrics_of_the_version_that_began_it(runs: Path) -> None:
    resume_run(runs / "stopped")
    lines = RunFolder(runs / "stopped").evaluations()
    expected = [json.loads(line) for line in (runs / "stopped_then_finished.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    assert lines[:2] == expected[:2]  # these were written by the old version
    for line, wanted in zip(lines, expected, strict=True):  # other processors round differently
        assert line["train"] == pytest.approx(wanted["train"], rel=1e-3)
        assert line["test"]["accuracy"] == pytest.approx(wanted["test"]["accuracy"], abs=0.01)


def test_its_chain_of_guidances_keeps_its_order(runs: Path) -> None:
    assert RunFolder(runs / "stopped").config().guidance.full_name == "distribution_alignment+prg"
    assert read_run(runs / "stopped").label == "flexmatch + distribution_alignment + prg"


def test_a_run_on_own_data_is_evaluated_and_resumed(runs: Path) -> None:
    config = RunFolder(runs / "own").config()
    assert (config.dataset.name, config.protocol.name) == ("own_data", "as_labeled")
    scores = evaluate_run(runs / "own", root=runs / "animals.csv")
    assert scores["accuracy"] == pytest.approx(RunFolder(runs / "own").evaluations()[-1]["test"]["accuracy"])
    for folder in (runs / "own", runs / "own" / "supervised"):  # without a checkpoint the model cannot be extended
        with pytest.raises(FileNotFoundError, match=r"state\.pt is missing"):
            resume_own_data(folder, Display(), root=runs / "animals.csv")


def test_both_are_drawn_into_one_report(runs: Path, tmp_path: Path) -> None:
    records = read_runs([runs])
    assert {run.label for run in records} == {"flexmatch + distribution_alignment + prg", "pseudo_label + cadr"}
    write_report(records, tmp_path / "report.html", title="Old runs")
    page = (tmp_path / "report.html").read_text()
    assert "flexmatch + distribution_alignment + prg" in page
    assert "pseudo_label + cadr" in page
