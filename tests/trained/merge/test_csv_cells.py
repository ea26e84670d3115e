"""Replace cells of a CSV file, and nothing else."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnar.datasets.user_files.csv_file import csv_layout, read_csv
from mnar.trained.merge.csv_cells import cell_spans, check_encoding, edited_csv

TEXT = '\ufeffname;label;note\r\n"a;1" ;;"say ""hi"""\r\n\r\n b ;"" ; x\r\n;;\r\n"two\nlines";old;'


def edited(path: Path, column: str, cells: dict[int, str], rows: list[dict[str, str]] | None = None) -> bytes:
    return b"".join(edited_csv(csv_layout(path), column, cells, rows or []))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_only_the_new_cells_differ_whatever_the_quotes_line_ends_and_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(TEXT.replace('"a;1" ', '"a;1"').replace('"" ;', '"";').encode(encoding))
    expected = TEXT.replace('"a;1" ;;', '"a;1";cät;').replace('"" ;', '"x;""y""";').replace(";old;", ";new;")
    assert edited(path, "label", {1: "cät", 2: 'x;"y"', 4: "new"}).decode(encoding) == expected
    assert edited(path, "label", {}) == path.read_bytes()


def test_the_last_line_without_a_line_end_gets_one_before_new_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"path,label,note\r\na.png,x,")
    assert edited(path, "label", {}, [{"path": "b, c.png", "label": "y"}]) == (
        b'path,label,note\r\na.png,x,\r\n"b, c.png",y,\r\n'
    )


def test_a_label_that_the_encoding_lacks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("x,label\ncaf\xe9,\n".encode("cp1252"))
    assert edited(path, "label", {1: "th\xe9"}) == "x,label\ncaf\xe9,th\xe9\n".encode("cp1252")
    with pytest.raises(ValueError, match=r"a file in cp1252, which has no '中', but .* save the file as UTF-8 first"):
        edited(path, "label", {1: "中"})
    check_encoding(csv_layout(path), ["th\xe9"])
    with pytest.raises(ValueError, match="has no '中'"):
        check_encoding(csv_layout(path), ["th\xe9", "中"])


CELL = st.text(st.sampled_from('ab ,;"\n'), max_size=5)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=4),
    label=CELL.map(str.strip).filter(bool),
    separator=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_reading_an_edited_file_gives_the_new_cell_and_all_old_cells(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[str]],
    label: str,
    separator: str,
    quoting: int,
    line_end: str,
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=line_end)  # type: ignore[arg-type]
    writer.writerows([["one", "two", "three"], *rows, ["x", "y", "z"]])
    path.write_bytes(text.getvalue().encode())
    before = read_csv(path)
    if before.header != ["one", "two", "three"]:
        return  # the separator cannot be recognised
    number = before.row_numbers[0]
    path.write_bytes(edited(path, "two", {number: label}))
    after = read_csv(path)
    position = after.row_numbers.index(number)
    assert after.rows[position][1] == label
    after.rows[position][1] = before.rows[position][1]
    assert after.rows == before.rows


def test_spans_of_cells_keep_quotes_and_leave_out_spaces_before() -> None:
    record = ' a , "b,""c""",,d\r\n'
    assert [record[start:end] for start, end in cell_spans(record, ",")] == ["a ", '"b,""c"""', "", "d"]
