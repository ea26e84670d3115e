"""A CSV file as somebody's spreadsheet wrote it: any usual encoding, line end and separator, cells as text."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

SEPARATORS = ("\t", ";", "|", ",")  # a comma is also in numbers and names, so it yields to the others
SAMPLE, SAMPLE_SIZE = 50, 100_000  # records and characters that the separator is found out from


@dataclass(frozen=True)
class CsvFile:
    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # lines[i] is where rows[i] begins in the file
    separator: str
    notes: list[str]

    def column(self, name: str) -> list[str]:
        if name not in self.header:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.header)}; name one of these")
        position = self.header.index(name)
        return [row[position] for row in self.rows]


def read_csv(path: Path) -> CsvFile:
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
                f"{path}, line {line}: {len(cells)} cells separated by {separator!r}, and {len(header)} in the header; "
                "add or remove cells, and put quotes round a cell that holds the separator"
            )
        rows.append(cells)
        lines.append(line)
    if not rows:
        raise ValueError(f"{path} has a header and no rows; give one row or more below it")
    if num_empty:
        notes.append(f"{path}: left out {num_empty} rows in which every cell is empty")
    return CsvFile(path, header, rows, lines, separator, notes)


def read_header(path: Path) -> list[str]:
    """The columns' names alone."""
    text, _ = _decoded(Path(path))
    return _header(next(_records(text, _separator(text), path), None), path)


def _decoded(path: Path) -> tuple[str, list[str]]:
    data = path.read_bytes()
    notes = []
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            raise ValueError(f"{path} begins as UTF-16 but is not ({error}); save it again as UTF-8") from error
        where = _byte_and_line(path, data, error)
        try:
            text = data.decode("cp1252")
        except UnicodeDecodeError as second:
            where = _byte_and_line(path, data, second)
            raise ValueError(f"{where} is neither UTF-8 nor Windows-1252; save the file again as UTF-8") from second
        notes.append(f"{where} is not UTF-8, so the file was read as Windows-1252; check its accented letters")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path}, line {line}: a NUL character, so this is not a text file; save it again as UTF-8")
    return text, notes


def _byte_and_line(path: Path, data: bytes, error: UnicodeDecodeError) -> str:
    # Counted in the bytes themselves: the decoder's own position leaves out a byte-order mark.
    start = error.start + len(data) - len(error.object)
    line = data.count(b"\n", 0, start) + 1
    return f"{path}, line {line}: byte 0x{data[start]:02x}"


def _separator(text: str) -> str:
    """The one by which most of the first records have as many cells as the header, which has two or more."""

    def fit(separator: str) -> tuple[int, int]:
        sizes = []
        try:
            for cells in islice(csv.reader(io.StringIO(text[:SAMPLE_SIZE], newline=""), delimiter=separator), SAMPLE):
                if cells:
                    sizes.append(len(cells))  # noqa: PERF401, what was read before an error still counts
        except csv.Error:
            pass
        if not sizes or sizes[0] == 1:
            return int(separator == ","), 0  # one column
        return sizes.count(sizes[0]), sizes[0]

    return max(SEPARATORS, key=fit)  # the first of equals


def _records(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records that are not blank lines, each with the line it begins on."""
    # strict: otherwise a quote that is never closed swallows the rest of the file into one cell without a word.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    first_line = 1
    try:
        for cells in reader:
            if cells:
                yield first_line, cells
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {first_line}: {error}; close the quotes of the cell, and double those inside it"
        ) from error


def _header(record: tuple[int, list[str]] | None, path: Path) -> list[str]:
    if record is None:
        raise ValueError(f"{path} is empty; give a header line and one row or more")
    line, cells = record
    header = [name.strip() for name in cells]
    for position, name in enumerate(header):
        if not name:
            raise ValueError(f"{path}, line {line}: column {position + 1} has no name; give it one or remove it")
        if name in header[:position]:
            raise ValueError(f"{path}, line {line}: two columns are called {name!r}; rename one")
    return header
