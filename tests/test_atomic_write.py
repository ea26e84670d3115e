"""The check, before long work, that a file can be written, and JSON. Atomic writes are tested with checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mnar.atomic_write import check_writable, from_json, write_atomically
from tests.support.command import failing_with


@pytest.mark.parametrize("path", ["new.html", "old.html", "new/folder/page.html"])
def test_a_path_that_passes_the_check_can_be_written_and_the_check_leaves_nothing_behind(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "old.html").write_text("old")
    check_writable(tmp_path / path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old.html", "old")]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(tmp_path / path, "new")


def test_a_relative_path_is_checked_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.chdir(tmp_path)
    check_writable(Path("page.html"))
    with pytest.raises(NotADirectoryError, match=r"because .*taken is a file and not a folder"):
        check_writable(Path("taken/page.html"))


def test_a_folder_in_place_of_the_file_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=rf"{tmp_path} is a folder; .* e\.g\. {tmp_path}/look\.json"):
        check_writable(tmp_path, example="look.json")


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"notes\.txt is a file and not a folder; choose another path"):
        check_writable(tmp_path / "notes.txt/deep/page.html")


def test_a_folder_in_which_no_file_can_be_created_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only = OSError(30, "Read-only file system")
    monkeypatch.setattr(tempfile, "TemporaryFile", failing_with(read_only))
    with pytest.raises(
        PermissionError, match=rf"no file can be created in {tmp_path} \(Read-only file system\); choose"
    ):
        check_writable(tmp_path / "new/page.html")


@pytest.mark.parametrize("damaged", ["[" * 100_000, "{", "", "9" * 5000])
def test_every_damaged_json_is_a_value_error(damaged: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(damaged)
