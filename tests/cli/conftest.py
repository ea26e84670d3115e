"""Fixtures for the tests of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnar.terminal.console import console
from tests.support.command import Mnar, run_here


@pytest.fixture
def mnar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mnar:
    return lambda *arguments: run_here(capsys, monkeypatch, *arguments)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every command in an empty folder, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # for the help, which Typer prints
    monkeypatch.setattr(console, "width", 200)
