"""A result file: it continues after a kill at any moment, and appears only when it is complete."""

from __future__ import annotations

import csv
import errno
import os
from functools import partial
from pathlib import Path

import pytest

from mnar.trained.result_file import check_output, csv_lines, result_file, source_fingerprint
from tests.support.killing import Trap, in_a_child, kill_me, was_killed

HEADER = ["row", "label"]
BLOCKS = [[["1", "a"], ["2", 'b,\n"quoted"']], [["3", "ü"], ["4", ""]], [["5", "e"]]]
IDENTITY = {"command": "predict", "model": "0abc"}


def write(out: Path, identity: dict[str, object] = IDENTITY, *, overwrite: bool = False, until: int = 3) -> list[int]:
    """Write the blocks, two rows each; return the row at which each of them started."""
    starts = []
    with result_file(out, csv_lines([HEADER]), identity, overwrite=overwrite) as result:
        for block in BLOCKS[-(-result.num_rows // 2) :]:
            if len(starts) == until:
                raise KeyboardInterrupt
            starts.append(result.num_rows)
            result.append(csv_lines(block), len(block))
    return starts


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


ALL_ROWS = [HEADER, *(row for block in BLOCKS for row in block)]


def test_the_file_holds_the_header_and_all_rows_and_nothing_is_left_behind(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.csv"
    write(out)
    assert rows_of(out) == ALL_ROWS
    assert [path.name for path in out.parent.iterdir()] == ["out.csv"]


def test_a_stopped_command_goes_on_after_the_last_complete_block(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        write(out, until=1)
    assert not out.exists()
    assert write(out) == [2, 4]
    assert rows_of(out) == ALL_ROWS


def test_killed_at_every_moment_the_file_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "straight.csv")
    expected = (tmp_path / "straight.csv").read_bytes()

    def killed(out: Path, moment: int) -> None:
        Trap(moment, kill_me).set(pytest.MonkeyPatch())
        write(out)

    for moment in range(1, 200):
        out = tmp_path / f"{moment}" / "out.csv"
        if not was_killed(in_a_child(partial(killed, out, moment))):
            break
        if not out.exists():
            write(out)
        assert out.read_bytes() == expected
    assert 20 < moment < 200, "every moment was tried"


def test_bytes_of_a_block_that_was_cut_off_are_dropped(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        write(out, until=2)
    with (tmp_path / "out.csv.part").open("ab") as file:
        file.write(b"5,half of a ro")
    assert write(out) == [4]
    assert rows_of(out) == ALL_ROWS


def test_a_block_that_was_written_in_part_is_written_again_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"

    def stop_within_the_second_block() -> None:
        with result_file(out, csv_lines([HEADER]), IDENTITY) as result:
            result.append(csv_lines(BLOCKS[0]), len(BLOCKS[0]))
            result.file.write(csv_lines(BLOCKS[1])[:-3])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_within_the_second_block()
    assert write(out) == [2, 4]
    assert rows_of(out) == ALL_ROWS


def test_a_command_that_refuses_its_input_leaves_nothing_behind(tmp_path: Path) -> None:
    def refuse_the_third_row() -> None:
        with result_file(tmp_path / "out.csv", csv_lines([HEADER]), IDENTITY) as result:
            result.append(csv_lines(BLOCKS[0]), len(BLOCKS[0]))
            raise ValueError("row 3 is not finite")

    with pytest.raises(ValueError, match="not finite"):
        refuse_the_third_row()
    assert list(tmp_path.iterdir()) == []


def test_a_dangling_link_with_the_name_of_the_part_file_is_refused_and_leads_to_no_new_file(tmp_path: Path) -> None:
    (tmp_path / "out.csv.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="in the way"):
        write(tmp_path / "out.csv")
    assert not (tmp_path / "elsewhere").exists()


def test_an_existing_file_is_refused_or_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    with pytest.raises(FileExistsError, match=r"out\.csv exists; .*--overwrite"):
        write(out)
    assert out.read_text() == "precious"
    write(out, overwrite=True)
    assert rows_of(out) == ALL_ROWS


def test_rows_of_another_command_are_not_continued(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        write(out, until=1)
    other = {**IDENTITY, "model": "1def"}
    with pytest.raises(FileExistsError, match=r"other settings \(model\); .*--overwrite"):
        write(out, other)
    assert write(out, other, overwrite=True) == [0, 2, 4]
    assert rows_of(out) == ALL_ROWS


@pytest.mark.parametrize(
    "state",
    [
        *("", "{}", "[1]", '{"rows": 4, "bytes": 99999, "identity": {}}', '{"rows": 2, "bytes": 0, "identity": {}}'),
        *('{"rows": 2, "bytes": -9, "identity": {}}', '{"rows": 2, "bytes": 9, "identity": []}'),
    ],
)
def test_a_damaged_record_of_the_progress_starts_anew(tmp_path: Path, state: str) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        write(out, until=1)
    (tmp_path / "out.csv.part.json").write_text(state)
    assert write(out) == [0, 2, 4]
    assert rows_of(out) == ALL_ROWS


def test_two_processes_do_not_write_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with (
        result_file(out, csv_lines([HEADER]), IDENTITY),
        pytest.raises(FileExistsError, match="another process is writing"),
    ):
        write(out)


def test_a_full_disk_names_the_file_and_the_command_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real, calls = tmp_path / "out.csv", os.fsync, list[int]()

    def full_at_the_fourth_call(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_fourth_call)
    with pytest.raises(OSError, match="No space left") as caught:
        write(out)
    assert "out.csv" in str(caught.value.filename)
    write(out)
    assert rows_of(out) == ALL_ROWS


def test_a_folder_or_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_output(tmp_path, overwrite=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        check_output(tmp_path / "file" / "out.csv", overwrite=False)


def test_the_fingerprint_changes_with_the_data(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"a" * 3_000_000)
    before = source_fingerprint(path)
    assert source_fingerprint(path) == before
    path.write_bytes(b"a" * 2_999_999 + b"b")
    assert source_fingerprint(path) != before
    path.write_bytes(b"a" * 3_000_001)
    assert source_fingerprint(path) != before
    path.write_bytes(b"a" * 1_500_000 + b"b" + b"a" * 1_499_999)
    assert source_fingerprint(path) != before, "in the middle"


def test_the_fingerprint_of_a_folder_changes_if_labels_move_between_rows_or_an_image_is_replaced(
    tmp_path: Path,
) -> None:
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\nb.png,\n")
    (tmp_path / "a.png").write_bytes(b"12")
    os.utime(tmp_path / "a.png", ns=(0, 1))
    before = source_fingerprint(tmp_path)
    assert source_fingerprint(tmp_path) == before
    (tmp_path / "labels.csv").write_text("file,label\na.png,\nb.png,cat\n")
    moved = source_fingerprint(tmp_path)
    assert moved != before
    (tmp_path / "a.png").write_bytes(b"34")
    os.utime(tmp_path / "a.png", ns=(0, 2))
    assert source_fingerprint(tmp_path) != moved, "of the same size, but of another time"


def test_the_fingerprint_of_a_folder_survives_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"12")
    before = source_fingerprint(tmp_path)
    (tmp_path / "b.png").symlink_to("gone.png")
    assert source_fingerprint(tmp_path) != before


def test_rows_of_other_data_are_dropped(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        write(out, {**IDENTITY, "data": "old"}, until=1)
    assert write(out, {**IDENTITY, "data": "new"}) == [0, 2, 4]
    assert rows_of(out) == ALL_ROWS


def test_a_users_file_with_the_name_of_the_part_file_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out.csv.part").write_text("my own notes")
    with pytest.raises(FileExistsError, match=r"out\.csv\.part is in the way"):
        write(tmp_path / "out.csv")
    assert (tmp_path / "out.csv.part").read_text() == "my own notes"
