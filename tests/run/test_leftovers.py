"""The next start removes the temporary files of a process that was killed, and no other file."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from mnar.atomic_write import remove_leftover, write_atomically, writing_atomically
from mnar.run import new_run, resume_run
from mnar.run.leftovers import WRITTEN_FILES
from mnar.run.lock import locked
from tests.conftest import Configure
from tests.support.equality import assert_same_run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_resuming_removes_what_a_killed_process_has_left_and_keeps_all_other_files(run: Path) -> None:
    before = names_in(run)
    left = [f"{name}.part" for name in (*WRITTEN_FILES, "state.pt.new")]
    left += ["selections/01.safetensors.part", "members/trees.npz.part", "pretraining/report.html.part"]
    kept = {"labels.csv.part", "labels.csv.part.json", "my notes.part"}  # of `mnar predict`, and of the user
    for name in (*left, *kept):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("half")
    resume_run(run)
    assert names_in(run) == before | kept


def test_a_run_killed_between_the_two_renames_of_its_last_checkpoint_has_it_under_its_name_after_the_next_start(
    run: Path, finished_run: Path
) -> None:
    (run / "state.pt").rename(run / "state.pt.new")
    resume_run(run)
    assert "state.pt.new" not in names_in(run)
    assert_same_run(run, finished_run)


@pytest.mark.parametrize("name", ["config.yaml.part", "portfolio.yaml.part"])
def test_a_new_run_takes_a_folder_with_nothing_but_a_half_written_configuration(
    tmp_path: Path, tiny: Configure, name: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("data")
    new_run(tiny(iterations=10), tmp_path / "run")
    assert not [left for left in names_in(tmp_path) if left.endswith(".part")]


def test_the_file_that_a_process_is_writing_is_not_removed(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    with writing_atomically(report) as file:
        file.write(b"whole")
        with locked(tmp_path):  # a run starts while `mnar report` writes
            assert (tmp_path / "report.html.part").exists()
    assert report.read_bytes() == b"whole"
    remove_leftover(report)
    assert report.exists()


def test_two_writers_of_one_file_write_one_after_the_other(tmp_path: Path) -> None:
    path, began = tmp_path / "report.html", threading.Event()

    def second() -> None:
        began.set()
        write_atomically(path, "second")

    with writing_atomically(path) as file:
        writer = threading.Thread(target=second)
        writer.start()
        began.wait()
        time.sleep(0.1)  # the second writer waits for the lock
        file.write(b"first")
        file.flush()
        assert path.with_name("report.html.part").stat().st_size == len("first")
    writer.join()
    assert path.read_text() == "second"
    assert names_in(tmp_path) == {"report.html"}
