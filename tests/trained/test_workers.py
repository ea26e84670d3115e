"""The choice of a launcher for predict and relabel, without Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mnar.bench import launchers
from mnar.trained.labelling import ThisMachine
from mnar.trained.workers import make_workers
from tests.support.command import run_here


def test_the_default_is_this_machine_and_takes_no_options() -> None:
    assert isinstance(make_workers("local", (), "auto"), ThisMachine)
    with pytest.raises(ValueError, match=r"--launcher-option address=x:1 is not for local processes; choose another"):
        make_workers("local", ["address=x:1"], "auto")


@pytest.mark.parametrize("command", ["predict", "relabel"])
def test_without_ray_the_error_says_what_to_install_or_to_choose(
    command: str,
    table_run: Path,
    table_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(launchers, "find_spec", lambda wanted: None if wanted == "ray" else find(wanted))
    source = (table_file,) if command == "predict" else ("--pool", table_file)
    out = tmp_path / "out.csv"
    outcome = run_here(capsys, monkeypatch, command, table_run, *source, "--out", out, "--launcher", "ray")
    assert outcome.code == 1
    assert "pip install 'mnar[ray]', or choose --launcher local" in outcome.errors
    assert list(tmp_path.iterdir()) == []


def test_the_training_pool_is_not_labelled_by_other_machines(
    table_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run_here(capsys, monkeypatch, "relabel", table_run, "--launcher", "ray")
    assert outcome.code == 1
    assert "name the pool with --pool, or leave out --launcher" in outcome.errors
