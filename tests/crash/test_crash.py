from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.crash.comparison import differences
from tests.crash.file_operations import FileOperations
from tests.support.killing import in_a_child, was_killed

NUM_KILLS = 40


@pytest.mark.slow
def test_runs_killed_at_40_of_their_file_operations_and_continued_equal_runs_that_were_not_killed() -> None:
    """In a process of its own, because this process may have trained; then its forks may hang."""
    command = [sys.executable, "-m", "tests.crash.crash_test", "--sample", str(NUM_KILLS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NUM_KILLS} kills, 0 of them with a wrong result" in done.stdout


def kill_while(action: Callable[[Path], None], folder: Path, moment: int) -> bool:
    """Do something in another process that is killed at a moment; return whether the moment came."""

    def act() -> None:
        FileOperations(folder, kill_at=moment).watch()
        action(folder)

    return was_killed(in_a_child(act))


def write_and_rename(folder: Path) -> None:
    with (folder / "new").open("w") as file:
        file.write("abcdef")
        os.fsync(file.fileno())
    (folder / "new").replace(folder / "file")


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        (1, {}),
        (2, {"new": ""}),
        (3, {"new": "abc"}),
        (4, {"new": "abcdef"}),
        (5, {"new": "abcdef"}),
        (6, {"file": "abcdef"}),
    ],
)
def test_a_kill_leaves_what_the_operations_before_it_wrote(tmp_path: Path, moment: int, left: dict[str, str]) -> None:
    assert kill_while(write_and_rename, tmp_path, moment) == (moment < 6)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == left


def rename_too_early(folder: Path) -> None:
    (folder / "new").write_text("abcdef")
    (folder / "new").rename(folder / "file")


def save_a_checkpoint_before_the_metrics(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text("{}")
    write_and_rename(folder)
    (folder / "file").rename(folder / "state.pt.new")
    (folder / "state.pt.new").rename(folder / "state.pt")


@pytest.mark.parametrize(
    ("action", "num_unsafe"),
    [(write_and_rename, 0), (rename_too_early, 1), (save_a_checkpoint_before_the_metrics, 1)],
)
def test_a_rename_before_the_content_is_flushed_is_unsafe(
    tmp_path: Path, action: Callable[[Path], None], num_unsafe: int
) -> None:
    (tmp_path / "folder").mkdir()

    def act() -> None:
        operations = FileOperations(tmp_path / "folder")
        operations.watch()
        action(tmp_path / "folder")
        (tmp_path / "unsafe").write_text("\n".join(operations.unsafe))

    assert not was_killed(in_a_child(act))
    assert len((tmp_path / "unsafe").read_text().splitlines()) == num_unsafe


def test_folders_are_compared_by_their_bytes_without_times(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for number, folder in enumerate((one, other)):
        folder.mkdir()
        (folder / "same.txt").write_text("x")
        (folder / "different.txt").write_text(str(number))
        (folder / ".lock").write_text(str(number))
        (folder / "times.json").write_text(json.dumps({"a": [{"seconds": number, "b": 1}]}))
        (folder / "more.json").write_text(json.dumps({"a": number}))
        np.savez(folder / "times.npz", seconds=number, probs=np.ones(2))
        np.savez(folder / "more.npz", seconds=1, probs=np.full(2, number))
    (one / "state.pt.part").write_text("")
    (other / "model").write_text("")
    different = [f"{name} differs" for name in ("different.txt", "more.json", "more.npz")]
    assert differences(one, other) == ["state.pt.part is left behind", "model is missing", *different]
