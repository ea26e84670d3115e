"""`mnar export`: its output and wrong options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Mnar, run_here


@pytest.fixture
def mnar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mnar:
    """Run a command in an empty folder, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: run_here(capsys, monkeypatch, *arguments)


def test_export_says_where_the_files_are_and_what_the_check_found(mnar: Mnar, linear_run: Path) -> None:
    outcome = mnar("export", linear_run, "--to", "pt2", "--out", "exported", "--prior", "uniform")
    assert outcome.code == 0
    assert "Exported: exported" in outcome.output
    assert "The probabilities are for equally frequent classes" in outcome.output
    assert "differ from those of torch by at most" in outcome.output
    assert Path("exported/model.pt2").is_file()
    again = mnar("export", linear_run, "--to", "pt2", "--out", "exported")
    assert again.code == 1
    assert "--overwrite" in again.errors


def test_an_unknown_format_is_refused(mnar: Mnar, linear_run: Path) -> None:
    outcome = mnar("export", linear_run, "--to", "tensorflow")
    assert outcome.code == 2
    assert "onnx" in outcome.errors
    assert "safetensors" in outcome.errors
