"""Replace cells of one column of a CSV file, and leave every other byte of the file as it is."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mnar.datasets.user_files.csv_file import CsvLayout

QUOTE = '"'
MARKS = {"utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-8-sig": (codecs.BOM_UTF8,)}


def edited_csv(
    layout: CsvLayout, column: str, new_cells: Mapping[int, str], new_rows: Sequence[Mapping[str, str]] = ()
) -> Iterator[bytes]:
    """Yield the file piece by piece, with new cells in a column and with new rows at its end.

    `new_cells` are by the number of the row, from 1 without the header, as `csv_rows` counts. A new row has the cells
    of some columns; its other cells are empty.
    """
    position = layout.header.index(column)
    mark, encoding = _mark_and_encoding(layout)
    yield mark
    line_end, ends_open, number = "\n", False, -1  # the header has the number 0
    with layout.path.open(encoding=layout.encoding, newline="") as file:
        for raw, cells in _records(file, layout.separator):
            number += bool(cells)
            if number == 0 and cells:
                line_end = raw[len(raw.rstrip("\r\n")) :] or "\n"
            if cells and number in new_cells:
                start, end = cell_spans(raw, layout.separator)[position]
                raw = raw[:start] + _written(new_cells[number], raw[start:end], layout.separator) + raw[end:]
            ends_open = not raw.endswith(("\n", "\r"))
            yield _encoded(raw, encoding, layout.path)
    if new_rows and ends_open:
        yield line_end.encode(encoding)
    for row in new_rows:
        cells = [_written(row.get(name, ""), "", layout.separator) for name in layout.header]
        yield _encoded(layout.separator.join(cells) + line_end, encoding, layout.path)


def check_encoding(layout: CsvLayout, texts: Iterable[str]) -> None:
    """Raise an error if the encoding of the file lacks a character of the texts."""
    _, encoding = _mark_and_encoding(layout)
    for text in dict.fromkeys(texts):
        _encoded(text, encoding, layout.path)


def cell_spans(record: str, separator: str) -> list[tuple[int, int]]:
    """Return where each cell of a record begins and ends, with its quotes and without the spaces before it."""
    spans, place = [], 0
    while True:
        while record[place : place + 1] == " ":
            place += 1
        start = place
        if record[place : place + 1] == QUOTE:
            place += 1
            while True:
                place = record.index(QUOTE, place) + 1
                if record[place : place + 1] != QUOTE:
                    break
                place += 1  # a doubled quote stands for a quote within the cell
        ends = [found for mark in (separator, "\n", "\r") if (found := record.find(mark, place)) >= 0]
        end = min(ends, default=len(record))
        spans.append((start, end))
        if record[end : end + 1] != separator:
            return spans
        place = end + 1


def _records(file: io.TextIOBase, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the text of each record with its line end, and its cells. A blank line has no cells."""
    lines: list[str] = []

    def recorded() -> Iterator[str]:
        for line in file:
            lines.append(line)
            yield line

    for cells in csv.reader(recorded(), delimiter=separator, skipinitialspace=True, strict=True):
        yield "".join(lines), cells
        lines.clear()


def _written(text: str, old: str, separator: str) -> str:
    """Return the text of a cell with quotes if it needs them, or if the old cell had quotes."""
    needs_quotes = any(mark in text for mark in (separator, QUOTE, "\n", "\r")) or text != text.strip()
    if not needs_quotes and not old.startswith(QUOTE):
        return text
    return f"{QUOTE}{text.replace(QUOTE, 2 * QUOTE)}{QUOTE}"


def _mark_and_encoding(layout: CsvLayout) -> tuple[bytes, str]:
    """Return the byte-order mark at the beginning of the file, and the encoding of what follows it."""
    with layout.path.open("rb") as file:
        beginning = file.read(3)
    mark = next((mark for mark in MARKS.get(layout.encoding, ()) if beginning.startswith(mark)), b"")
    if layout.encoding == "utf-16":
        return mark, "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    return mark, "utf-8" if layout.encoding == "utf-8-sig" else layout.encoding


def _encoded(text: str, encoding: str, path: Path) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        lacking = error.object[error.start : error.end]
        raise ValueError(
            f"{path} is a file in {encoding}, which has no {lacking!r}, but {text.strip()!r} must be written; save the "
            "file as UTF-8 first"
        ) from error
