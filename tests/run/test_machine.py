from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from mnar.run import machine as machine_module
from mnar.run.machine import machine

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed file, which `mnar.run.machine` takes for its own source."""
    path = tmp_path / "machine.py"
    path.write_text("first\n")
    monkeypatch.setattr(machine_module, "__file__", str(path))
    for command in ("init --quiet", "add machine.py", "-c user.name=x -c user.email=x@y commit --quiet -m first"):
        subprocess.run(["git", "-C", str(tmp_path), *command.split()], check=True)
    return path


def test_the_commit_is_marked_when_files_were_changed(source: Path) -> None:
    commit = machine(CPU)["commit"]
    assert commit is not None
    assert len(commit) == 12
    source.write_text("second\n")
    assert machine(CPU)["commit"] == f"{commit}-dirty"


def test_reading_the_commit_takes_no_lock_in_the_repository(source: Path) -> None:
    """A lock would stay if the run was killed, and block the next commit."""
    source.touch()  # git would like to note the new time in its index
    index = source.parent / ".git" / "index"
    index.chmod(0o444)
    before = index.stat().st_mtime_ns
    assert machine(CPU)["commit"] is not None
    assert index.stat().st_mtime_ns == before


def test_a_source_outside_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "__file__", str(tmp_path / "machine.py"))
    assert machine(CPU)["commit"] is None
