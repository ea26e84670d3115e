"""`mnar report`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from mnar.report import html
from tests.report.made_up import write_run
from tests.support.command import Mnar


def test_a_report_is_written_into_a_new_folder(mnar: Mnar, finished_run: Path, tmp_path: Path) -> None:
    reported = mnar("report", finished_run, "--out", "new/folder/one.html")
    assert reported.code == 0, reported.errors
    assert reported.output == "Report: new/folder/one.html\n"
    page = (tmp_path / "new/folder/one.html").read_text()
    assert "data:image/svg+xml" in page
    assert "<title>fixmatch + prg</title>" in page


def test_a_report_is_about_all_runs_below_the_folders(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for figures in ("OVERVIEWS", "PLATES"):
        plates = [plate._replace(draw=lambda parts: None) for plate in getattr(html, figures)]
        monkeypatch.setattr(html, figures, plates)
    for seed in (1, 2, 3):
        write_run(tmp_path / f"{'some' if seed < 3 else 'other'}/seed-{seed}", seed=seed, num_evaluations=2)
    assert mnar("report", "some", "other").code == 0
    page = (tmp_path / "report.html").read_text()
    assert "<title>3 runs</title>" in page
    assert [f"<td>{folder}</td>" in page for folder in ("some/seed-1", "some/seed-2", "other/seed-3")] == [True] * 3


def test_the_output_path_is_checked_before_the_runs_are_read(mnar: Mnar, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused = mnar("report", "missing", "--out", "notes.txt/page.html")
    assert refused.code == 1
    assert "notes.txt is a file and not a folder" in refused.errors.replace("\n", "")


def test_a_report_never_replaces_a_file_of_a_run(mnar: Mnar, finished_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for name in ("config.yaml", "model.safetensors", "training.html", "selections/1.npz"):
        refused = mnar("report", finished_run, "--out", f"run/{name}")
        assert (refused.code, "choose another --out" in refused.errors) == (1, True), refused.errors
    (tmp_path / "portfolio").mkdir()
    (tmp_path / "portfolio/portfolio.yaml").write_text("")
    for name in ("choice.json", "report.html"):
        assert mnar("report", finished_run, "--out", f"portfolio/{name}").code == 1
    own = Path(shutil.copytree(run, tmp_path / "own"))
    config = yaml.safe_load((own / "config.yaml").read_text()) | {
        "dataset": {"name": "own_data", "root": "animals.csv"}
    }
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    refused = mnar("report", finished_run, "--out", "own/report.html")
    assert (refused.code, "is a page that the training of" in refused.errors) == (1, True), refused.errors
    (tmp_path / "survey.csv").write_text("a,b")
    assert mnar("report", finished_run, "--out", "survey.csv").code == 1
    assert (tmp_path / "survey.csv").read_text() == "a,b"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    reported = mnar("report", "run", "--out", "run/report.html")
    assert reported.code == 0, reported.errors
