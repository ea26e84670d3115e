"""Read a CSV file as spreadsheets write it, in any usual encoding, line end and separator, with all cells as text."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

SEPARATORS = ("\t", ";", "|", ",")  # the comma is last, because it also occurs in numbers and names
SAMPLE_RECORDS, SAMPLE_CHARACTERS = 50, 100_000  # the separator is recognised from the beginning of the file


@dataclass(frozen=True)
class CsvFile:
    """The contents of a CSV file."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # rows[i] begins on line lines[i] of the file
    separator: str
    notes: list[str]

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        if name not in self.header:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.header)}; name one of these")
        position = self.header.index(name)
        return [row[position] for row in self.rows]


def read_csv(path: Path) -> CsvFile:
    """Read a file with a header line. Rows in which every cell is empty are left out."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; name a CSV file with a header line")
    text, notes = _decoded(path)
    separator = _separator(text)
    records = _records(text, separator, path)
    header = _header(next(records, None), path)

    rows, lines, num_empty = [], [], 0
    for line, cells in records:
        if not any(cells):
            num_empty += 1
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(cells)} cells separated by {separator!r}, but {len(header)} in the header; "
                "add or remove cells, and put quotes around a cell that contains the separator"
            )
        rows.append(cells)
        lines.append(line)
    if not rows:
        raise ValueError(f"{path} has a header and no rows; give at least one row below the header")
    if num_empty:
        notes.append(f"{path}: {num_empty} rows are left out because every cell is empty")
    return CsvFile(path, header, rows, lines, separator, notes)


def read_header(path: Path) -> list[str]:
    """Return the column names of a CSV file. Its rows are not parsed."""
    text, _ = _decoded(Path(path))
    return _header(next(_records(text, _separator(text), path), None), path)


def _decoded(path: Path) -> tuple[str, list[str]]:
    """Return the text of the file, decoded as UTF-8, UTF-16 or Windows-1252, and notes on the encoding."""
    data = path.read_bytes()
    notes = []
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            raise ValueError(
                f"{path} begins like a UTF-16 file but is none ({error}); save it again as UTF-8"
            ) from error
        where = _byte_and_line(path, data, error)
        try:
            text = data.decode("cp1252")
        except UnicodeDecodeError as second:
            where = _byte_and_line(path, data, second)
            raise ValueError(f"{where} is neither UTF-8 nor Windows-1252; save the file again as UTF-8") from second
        notes.append(f"{where} is not UTF-8, so the file was read as Windows-1252; check its accented letters")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(
            f"{path}, line {line}: there is a NUL character, so this is not a text file; save it again as UTF-8"
        )
    return text, notes


def _byte_and_line(path: Path, data: bytes, error: UnicodeDecodeError) -> str:
    """Return where in the file the decoder failed: the path, the line and the byte."""
    # The position that the decoder reports does not count a byte-order mark.
    start = error.start + len(data) - len(error.object)
    line = data.count(b"\n", 0, start) + 1
    return f"{path}, line {line}: byte 0x{data[start]:02x}"


def _separator(text: str) -> str:
    """Return the separator with which most of the first records have as many cells as the header, two or more."""

    beginning = text[:SAMPLE_CHARACTERS]

    def goodness_of_fit(separator: str) -> tuple[int, int]:
        sizes = []
        try:
            for cells in islice(csv.reader(io.StringIO(beginning, newline=""), delimiter=separator), SAMPLE_RECORDS):
                if cells:
                    sizes.append(len(cells))  # noqa: PERF401, records before an error still count
        except csv.Error:
            pass
        if not sizes or sizes[0] == 1:
            return int(separator == ","), 0  # a file with one column
        return sizes.count(sizes[0]), sizes[0]

    return max(SEPARATORS, key=goodness_of_fit)  # if several fit equally well, the first of them


def _records(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not a blank line, after the number of the line on which it begins."""
    # strict: otherwise a quote that is never closed silently turns the rest of the file into one cell.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    first_line = 1
    try:
        for cells in reader:
            if cells:
                yield first_line, cells
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {first_line}: {error}; close the quotes of the cell, and double the quotes inside it"
        ) from error


def _header(record: tuple[int, list[str]] | None, path: Path) -> list[str]:
    """Return the column names in the first record; an empty name or a repeated name is an error."""
    if record is None:
        raise ValueError(f"{path} is empty; give a header line and at least one row")
    line, cells = record
    header = [name.strip() for name in cells]
    for position, name in enumerate(header):
        if not name:
            raise ValueError(
                f"{path}, line {line}: column {position + 1} has no name; give the column a name or remove it"
            )
        if name in header[:position]:
            raise ValueError(f"{path}, line {line}: two columns are called {name!r}; rename one of them")
    return header
