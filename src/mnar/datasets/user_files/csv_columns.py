"""Read the columns of a CSV file as numbers or coded texts, block by block, so that a large file fits into memory.

pyarrow (csv_arrow.py) reads a file several times as fast as Python's csv module (csv_blocks.py). Both give the same
columns: pyarrow reads plain files only, and this file converts each cell that is not plainly a number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files import csv_arrow
from mnar.datasets.user_files.csv_blocks import Block, Cells, Codes, Numbers, csv_blocks
from mnar.datasets.user_files.csv_file import CsvLayout, csv_layout, notes_on_empty_rows
from mnar.datasets.user_files.label_values import is_missing_feature
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.types import OnProgress

USE_ARROW = True  # False: always read with the csv module


class CodedTexts(NamedTuple):
    """A column of texts. Each different text is stored once, in the order of first appearance."""

    texts: list[str]
    codes: Codes  # [n] positions in `texts`

    def cells(self) -> list[str]:
        """Return the text of every row."""
        return [self.texts[code] for code in self.codes.tolist()]


class CsvColumns(NamedTuple):
    """The columns of a CSV file."""

    cells: dict[str, Numbers | CodedTexts]
    row_names: RowNames
    row_numbers: npt.NDArray[np.int64]  # from 1, without the header
    decimal_comma: bool
    notes: list[str]


def read_csv_columns(path: Path, *, as_text: Collection[str] = (), progress: OnProgress | None = None) -> CsvColumns:
    """Read a CSV file. A column is numbers if every filled cell is a number, and coded texts otherwise.

    The columns in `as_text` are always texts: those with labels, ids and known categories. `progress` counts bytes.
    """
    layout = csv_layout(path)
    reading = _read(layout, layout.header, as_text, progress)
    late = [name for name, column in reading.columns.items() if column.found_text_late]
    if late:  # their first blocks were read as numbers, whose spelling is lost: "007" is not "7"
        reading.columns |= _read(layout, late, late, None).columns
    num_rows = reading.num_rows - len(reading.empty_rows)
    notes = [*layout.notes, *notes_on_empty_rows(layout, num_rows, len(reading.empty_rows))]
    row_numbers = np.delete(np.arange(1, reading.num_rows + 1), reading.empty_rows)
    # A spreadsheet shows no lines, so a line number would point to a wrong row after a cell with a line break.
    one_line_each = layout.num_lines == reading.num_rows + 1
    return CsvColumns(
        cells={name: column.all_cells() for name, column in reading.columns.items()},
        row_names=RowNames("line", row_numbers + 1) if one_line_each else RowNames("row", row_numbers),
        row_numbers=row_numbers,
        decimal_comma=layout.decimal_comma,
        notes=notes,
    )


def number(cell: str, decimal_comma: bool) -> float:
    """Return a cell as a number, NaN if the cell is missing. A ValueError says that the cell is no number."""
    if is_missing_feature(cell):
        return np.nan
    if "_" in cell:
        raise ValueError("only Python reads 1_000 as a number")
    return float(cell.replace(",", ".") if decimal_comma else cell)


def _read(layout: CsvLayout, names: Sequence[str], as_text: Collection[str], progress: OnProgress | None) -> _Reading:
    """Read the named columns, with pyarrow if possible."""
    if USE_ARROW and csv_arrow.can_read(layout):
        try:
            return _Reading(layout, names, as_text).add(csv_arrow.arrow_blocks(layout, progress))
        except csv_arrow.CannotRead:
            pass  # the csv module reads the file, or names the line of the error
    return _Reading(layout, names, as_text).add(csv_blocks(layout, progress))


class _Reading:
    """Collects the blocks of a file."""

    def __init__(self, layout: CsvLayout, names: Sequence[str], as_text: Collection[str]) -> None:
        self.columns = {name: _Column(name in as_text, layout.decimal_comma) for name in names}
        self.positions = {name: layout.header.index(name) for name in names}
        self.num_rows = 0  # with the empty rows
        self.empty_rows: list[int] = []  # from 0

    def add(self, blocks: Iterator[Block]) -> _Reading:
        """Add all blocks of the file."""
        for block in blocks:
            self.empty_rows += [self.num_rows + row for row in block.empty_rows]
            self.num_rows += block.num_rows
            if block.num_rows > len(block.empty_rows):
                for name, column in self.columns.items():
                    column.add(block.columns[self.positions[name]])
        return self


class _Column:
    """Collects the blocks of a column: numbers until a cell is no number, then texts."""

    def __init__(self, is_text: bool, decimal_comma: bool) -> None:
        self.is_text, self.decimal_comma = is_text, decimal_comma
        self.found_text_late = False  # after a block of numbers; then the column must be read again as texts
        self.numbers: list[Numbers] = []
        self.codes: list[Codes] = []
        self.code_of: dict[str, int] = {}

    def add(self, cells: Cells) -> None:
        if self.found_text_late:
            return
        if not self.is_text:
            numbers = self._numbers_in(cells)
            if numbers is not None:
                self.numbers.append(numbers)
                return
            self.is_text, self.found_text_late = True, bool(self.numbers)
            self.numbers = []
        if not self.found_text_late:
            texts, codes = cells.distinct()
            for text in texts:
                self.code_of.setdefault(text, len(self.code_of))
            self.codes.append(np.array([self.code_of[text] for text in texts], np.int32)[codes])

    def all_cells(self) -> Numbers | CodedTexts:
        """Return the whole column, and free its blocks."""
        numbers, codes, self.numbers, self.codes = self.numbers, self.codes, [], []
        return CodedTexts(list(self.code_of), np.concatenate(codes)) if self.is_text else np.concatenate(numbers)

    def _numbers_in(self, cells: Cells) -> Numbers | None:
        numbers = cells.numbers(decimal_comma=self.decimal_comma)
        if numbers is not None:
            return numbers
        texts, codes = cells.distinct()
        try:
            return np.array([number(text, self.decimal_comma) for text in texts], np.float64)[codes]
        except ValueError:
            return None
