import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnar.datasets.user_files import csv_arrow, csv_blocks, csv_columns, read_data
from mnar.datasets.user_files.csv_columns import CodedTexts, CsvColumns, read_csv_columns
from mnar.datasets.user_files.csv_file import count_rows, csv_layout, csv_rows

ODD_FILES = {
    "plain": "a,b\n1,x\n2,y\n",
    "no last line end": "a,b\n1,x\n2,y",
    "quotes": 'a,b\n"1","x, y"\n2,"say ""hi"""\n',
    "spaces before quotes": 'a, b\n1, "x"\n2, y\n',
    "line breaks in cells": 'a,b\n1,"x\ny"\n2,z\n',
    "Windows line ends": "a,b\r\n1,x\r\n2,y\r\n",
    "old line ends": "a,b\r1,x\r2,y\r",
    "mixed line ends": "a,b\n1,x\r2,y\r\n",
    "UTF-8 mark": "\ufeffa,b\n1,Åse\n2,y\n",
    "semicolons and decimal commas": "a;b\n1,5;x\n2,25;y\n-,5;z\n",
    "decimal commas only": "a;b\n1,5;3\n2,25;4,0\n;1.5\n",
    "tabs": "a\tb\n1\tx y\n2\t\n",
    "pipes": "a|b\n1|x\n2|y\n",
    "blank lines": "\na,b\n\n1,x\n\n\n2,y\n\n",
    "rows of empty cells": "a,b\n,\n1,x\n , \n2,y\n,\n",
    "spaces around cells": "a,b\n 1 , x \n2  ,  y\n",
    "a line of spaces": "a,b\n1,x\n   \n2,y\n",
    "one column": "a\n1\n\n2\n",
    "big integers": "a,b\n123456789012345678901234567890,9007199254740993\n-1,18446744073709551615\n",
    "leading zeros": "a,b\n007,00\n1,x\n",
    "spellings of numbers": "a,b\n+5,.5\n1e3,5.\n1E-3,-0\n",
    "infinity and too large": "a,b\ninf,1e400\n-Infinity,-1e400\n3,1e-400\n",
    "missing": "a,b\nNA,?\n1,<NA>\nnull,NaT\nNaN,nan\n,Null\n",
    "unusual missing": "a,b\nnA,1\n2, nUlL \n",
    "NaN with a payload": "a,b\nnan(1),1\n2,3\n",
    "signed NaN": "a,b\n-nan,1\n2,3\n",
    "underscores": "a,b\n1_000,1\n2,2_0\n",
    "hexadecimal": "a,b\n0x10,1\n2,3\n",
    "other digits": "a,b\n\u0661\u0662,1\n2,\uff13\n",
    "a no-break space": "a,b\n\u00a01,x\n2,\u00a0y\n",
    "text at the end": "a,b\n" + "".join(f"{i:03},{i}\n" for i in range(40)) + "x,1\n",
    "missing at first": "a,b\n" + ",1\n" * 30 + "x,1\n007,2\n",
    "control characters": "a,b\n\x1f1,\x0b\n2,\x1c\n",
    "backslashes": "a,b\n1\\,x\\\n2,\\N\n",
}
ENCODINGS = {"UTF-16": "a,b\n1,Åse\n2,y\n".encode("utf-16"), "Windows-1252": "a,b\n1,Åse\n2,y\n".encode("cp1252")}
BAD_FILES = {
    "a short row": "a,b\n1,x\n2\n",
    "a long row": "a,b\n1,x\n2,y,z\n",
    "a short row after many": "a,b\n" + "1,x\n" * 100 + "2\n",
    "two columns of one name": "a,a\n1,x\n",
    "no name": "a,\n1,x\n",
    "no rows": "a,b\n",
    "only empty rows": "a,b\n,\n\n",
    "empty": "",
    "an open quote": 'a,b\n1,"x\n2,y\n',
    "a quote within a cell": 'a,b\n1,"x"y\n',
    "a very long cell": "a,b\n1,x\n2," + "y" * 140_000 + "\n",
}


def assert_equal(one: CsvColumns, other: CsvColumns) -> None:
    assert list(one.cells) == list(other.cells)
    for name, cells in one.cells.items():
        others = other.cells[name]
        if isinstance(cells, CodedTexts):
            assert isinstance(others, CodedTexts)
            assert cells.cells() == others.cells()
            assert cells.texts == others.texts
        else:
            assert isinstance(others, np.ndarray)
            assert cells.dtype == others.dtype == np.float64
            np.testing.assert_array_equal(
                cells.view(np.int64)[~np.isnan(cells)], others.view(np.int64)[~np.isnan(others)]
            )
            np.testing.assert_array_equal(np.isnan(cells), np.isnan(others))
    assert list(one.row_names) == list(other.row_names)
    assert one.row_numbers.tolist() == other.row_numbers.tolist()
    assert one[3:] == other[3:]


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "own.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def with_the_csv_module(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> CsvColumns:
    with monkeypatch.context() as patch:
        patch.setattr(csv_columns, "USE_ARROW", False)
        return read_csv_columns(path, **options)


@pytest.mark.parametrize("as_text", [(), ("a",)])
@pytest.mark.parametrize("content", [*ODD_FILES.values(), *ENCODINGS.values()], ids=[*ODD_FILES, *ENCODINGS])
def test_pyarrow_gives_the_columns_of_the_csv_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, as_text: tuple[str, ...]
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(csv_arrow, "BYTES_PER_BLOCK", 64)  # several blocks even in a small file
    monkeypatch.setattr(csv_blocks, "ROWS_PER_BLOCK", 7)
    path = write(tmp_path, content)
    assert_equal(read_csv_columns(path, as_text=as_text), with_the_csv_module(path, monkeypatch, as_text=as_text))


@pytest.mark.parametrize("content", [*ODD_FILES.values(), *ENCODINGS.values()], ids=[*ODD_FILES, *ENCODINGS])
def test_the_number_of_rows_is_that_of_the_rows_that_are_read(tmp_path: Path, content: str | bytes) -> None:
    layout = csv_layout(write(tmp_path, content))
    assert count_rows(layout) == len(list(csv_rows(layout)))


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_the_same_error_with_and_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=r"own\.csv") as expected:
        with_the_csv_module(path, monkeypatch)
    with pytest.raises(ValueError, match=r"own\.csv") as error:
        read_csv_columns(path)
    assert str(error.value) == str(expected.value)


def test_pyarrow_reads_plain_files_and_only_those(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    plain = [name for name, text in ODD_FILES.items() if csv_arrow.can_read(csv_layout(write(tmp_path, text)))]
    others = {"quotes", "spaces before quotes", "line breaks in cells", "old line ends", "mixed line ends"}
    assert set(plain) == ODD_FILES.keys() - others


def test_the_csv_module_reads_a_file_for_which_pyarrow_has_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(csv_arrow, "BYTES_FOR_THREADS", 1 << 60)
    path = write(tmp_path, ODD_FILES["plain"])
    with pytest.raises(csv_arrow.CannotRead):
        next(csv_arrow.arrow_blocks(csv_layout(path)))
    assert_equal(read_csv_columns(path), with_the_csv_module(path, monkeypatch))


# A fork starts in milliseconds. With a limit of some of these sizes, `open_csv` itself waits for ever.
READ_WITH_LITTLE_MEMORY = """
import os
import resource
import signal
from pathlib import Path
import pyarrow.compute
import pyarrow.csv
from mnar.datasets.user_files.csv_columns import read_csv_columns

for megabytes in (4, 6, 10, 64, 72, 80, 128, 132, 140, 148, 200, 1024, 1030, 1040, 1100, 1110, 2000):
    if os.fork() == 0:
        signal.alarm(30)
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + megabytes * 2**20, resource.RLIM_INFINITY))
        os._exit(len(read_csv_columns(Path("own.csv")).row_numbers))
    print(megabytes, os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_pyarrow_does_not_wait_for_ever_for_memory(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write(tmp_path, ODD_FILES["plain"])
    command = [sys.executable, "-c", READ_WITH_LITTLE_MEMORY]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    ends = dict(line.split() for line in done.stdout.splitlines())
    assert ends
    assert set(ends.values()) == {"2"}, f"{ends}\n{done.stderr}"


def test_pyarrow_needs_no_help_of_the_csv_module_with_a_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.delattr(csv_columns, "csv_blocks")
    cells = read_csv_columns(write(tmp_path, "a,b\n1,x\n,y\nNA,\n")).cells
    np.testing.assert_array_equal(cells["a"], [1, np.nan, np.nan])
    assert cells["b"].cells() == ["x", "y", ""]  # type: ignore[union-attr]


@pytest.mark.parametrize("content", ODD_FILES.values(), ids=ODD_FILES)
def test_blocks_of_one_row_give_the_cells_that_the_csv_module_gives_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """The oracle reads all cells as texts and converts a column to numbers if `float` accepts every filled cell."""
    monkeypatch.setattr(csv_blocks, "ROWS_PER_BLOCK", 1)
    path = write(tmp_path, content)
    separator = next(mark for mark in "\t;|," if mark in content or mark == ",")
    with path.open(newline="", encoding="utf-8-sig") as file:
        records = [cells for cells in csv.reader(file, delimiter=separator, skipinitialspace=True) if cells]
    rows = [cells for cells in records[1:] if any(cells)]
    columns = with_the_csv_module(path, monkeypatch).cells
    missing = {"", "nan", "<na>", "nat", "?", "na", "null"}
    for name, texts in zip(records[0], zip(*rows, strict=True), strict=True):
        found = columns[name.strip()]
        try:
            if any("_" in text for text in texts):
                raise ValueError
            points = [text.replace(",", ".") if separator == ";" else text for text in texts]
            numbers = [np.nan if text.strip().casefold() in missing else float(text) for text in points]
            assert isinstance(found, np.ndarray)
            np.testing.assert_array_equal(found, numbers)
        except ValueError:
            assert isinstance(found, CodedTexts)
            assert found.cells() == list(texts)


def test_a_row_is_called_by_its_line_if_every_row_takes_one_line(tmp_path: Path) -> None:
    assert list(read_csv_columns(write(tmp_path, "a,b\n1,x\n,\n2,y\n")).row_names) == ["line 2", "line 4"]
    assert list(read_csv_columns(write(tmp_path, 'a,b\n1,"x\n"\n,\n2,y\n')).row_names) == ["row 1", "row 3"]
    assert list(read_csv_columns(write(tmp_path, "a,b\r\n1,x\r\n\r\n2,y\r\n")).row_names) == ["row 1", "row 2"]


def test_line_ends_are_counted_across_the_blocks_in_which_the_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "a,b\r\n" + "1,x\r\n" * 9)
    for block in range(1, 8):
        monkeypatch.setattr("mnar.datasets.user_files.csv_file.BLOCK", block)
        layout = csv_layout(path)
        assert (layout.num_lines, layout.has_lone_carriage_returns) == (10, False)


@pytest.mark.parametrize("use_arrow", [True, False])
def test_progress_counts_the_bytes_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_arrow: bool
) -> None:
    if use_arrow:
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(csv_columns, "USE_ARROW", use_arrow)
    monkeypatch.setattr(csv_arrow, "BYTES_PER_BLOCK", 100_000)
    path = write(tmp_path, "a,label\n" + "".join(f"{i % 17}.25,{'xy'[i % 2]}\n" for i in range(40_000)))
    reports: list[tuple[int, int]] = []
    read_data(path, progress=lambda done, total: reports.append((done, total)))
    size = path.stat().st_size
    assert len(reports) >= 4
    assert reports == sorted(reports)
    assert {total for _, total in reports} == {size}
    assert 0 < reports[0][0] < size
    assert reports[-1] == (size, size)
