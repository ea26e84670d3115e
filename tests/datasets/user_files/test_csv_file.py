import time
from pathlib import Path

import pytest

from mnar.datasets.user_files.csv_file import read_csv

TEXT = "name,label\nLeón,cat\nÅse,dog\n"
ROWS = [["León", "cat"], ["Åse", "dog"]]


def write(folder: Path, data: str | bytes) -> Path:
    path = folder / "own.csv"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_unicode_encoding_and_every_line_end_gives_the_same_cells(
    tmp_path: Path, encoding: str, line_end: str
) -> None:
    file = read_csv(write(tmp_path, TEXT.replace("\n", line_end).encode(encoding)))
    assert file.header == ["name", "label"]
    assert file.rows == ROWS
    assert file.lines == [2, 3]
    assert file.notes == []


def test_windows_1252_is_read_with_a_note_that_names_byte_and_line(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, TEXT.encode("cp1252")))
    assert file.rows == ROWS
    assert len(file.notes) == 1
    assert "own.csv, line 2: byte 0xf3 is not UTF-8" in file.notes[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"name,label\na,b\n\x81\xff,c\n", r"own\.csv, line 3: byte 0x81 is neither"),
        (b"\xef\xbb\xbfname,label\na,b\n\x81\xff,c\n", r"own\.csv, line 3: byte 0x81 is neither"),
        (b"\xff\xfea", r"own\.csv begins like a UTF-16 file but is none .*save it again as UTF-8"),
        ("name,label\na,b\n".encode("utf-16-le"), r"own\.csv, line 1: there is a NUL character"),
        ("", r"own\.csv is empty"),
        ("\n\n", r"own\.csv is empty"),
        ("name,label\n", r"own\.csv has a header and no rows"),
        ("name,label\na,b\na,b,c\n", r"own\.csv, line 3: 3 cells separated by ',', but 2 in the header"),
        ('name,label\n"a\na",b\na\n', r"own\.csv, line 4: 1 cells"),
        ("name,label, name\na,b,c\n", r"line 1: two columns are called 'name'"),
        (",name,label\n0,a,b\n", r"line 1: column 1 has no name"),
        ('name,label\na,b\n"c,d\ne,f\n', r"own\.csv, line 3: .*close the quotes"),
    ],
)
def test_an_error_names_file_line_and_remedy(tmp_path: Path, data: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_csv(write(tmp_path, data))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.csv is not a file"):
        read_csv(tmp_path / "none.csv")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_recognised(tmp_path: Path, separator: str) -> None:
    file = read_csv(write(tmp_path, f"a{separator}b{separator}c\n1{separator}x y{separator}\n"))
    assert file.separator == separator
    assert file.rows == [["1", "x y", ""]]


def test_decimal_commas_are_not_taken_for_separators(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, "height, weight;label\n1,5;cat\n2,5;dog\n"))
    assert file.rows == [["1,5", "cat"], ["2,5", "dog"]]


def test_a_broken_row_does_not_change_the_separator(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 3: 1 cells separated by ';'"):
        read_csv(write(tmp_path, "a;b\n1;2\n3\n4;5\n"))


def test_one_column_needs_no_separator(tmp_path: Path) -> None:
    assert read_csv(write(tmp_path, "path\na.png\nb.png\n")).column("path") == ["a.png", "b.png"]


def test_a_row_is_called_by_the_line_it_begins_on_whatever_its_cells_hold(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, '\nname, label\r\n"a\r\nb",x\r\n\r\n"c, ""d""", "y"\r\n'))
    assert file.rows == [["a\r\nb", "x"], ['c, "d"', "y"]]
    assert file.lines == [3, 6]


def test_rows_without_any_cell_filled_are_left_out_with_a_note(tmp_path: Path) -> None:
    file = read_csv(write(tmp_path, "a,b\n1,2\n,\n , \n3,4\n"))
    assert file.rows == [["1", "2"], ["3", "4"]]
    assert file.lines == [2, 5]
    assert "2 rows are left out because every cell is empty" in file.notes[0]


def test_a_missing_column_is_an_error_that_lists_the_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"own\.csv has no column 'path', only name, label"):
        read_csv(write(tmp_path, TEXT)).column("path")


def test_64_600_rows_of_20_cells_take_about_a_second(tmp_path: Path) -> None:
    line = ",".join(["0.4752937495294623"] * 20) + "\n"
    path = write(tmp_path, ",".join(f"c{i}" for i in range(20)) + "\n" + line * 64_600)
    start = time.process_time()
    assert len(read_csv(path).rows) == 64_600
    assert time.process_time() - start < 3  # three times as long, for a slow or busy machine
