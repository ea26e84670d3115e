"""Read the rows of a table part by part: a CSV file, a parquet file, or a DataFrame. No cell is converted too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files import csv_arrow, csv_columns
from mnar.datasets.user_files.columns import PARQUET, Columns, column_names, columns_of, reading_parquet
from mnar.datasets.user_files.csv_blocks import Block, csv_blocks
from mnar.datasets.user_files.csv_columns import CodedTexts
from mnar.datasets.user_files.csv_file import count_rows, csv_layout, notes_on_empty_rows
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.types import OnProgress

ROWS_PER_PART = 1 << 16  # rows of a parquet file or a DataFrame that are converted together


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a source."""

    num_rows: int
    columns: Callable[[], Columns]  # converts the cells of the rows


class TableSource(Protocol):
    """A table that is read part by part."""

    can_start_anywhere: bool  # whether `parts(first_row)` starts without reading the rows before it
    where: str  # messages begin with it
    names: list[str]  # of all columns
    num_rows: int
    notes: list[str]

    def parts(self, first_row: int = 0, *, use_arrow: bool = True) -> Iterator[Part]:
        """Yield all rows. Only the cells of parts that reach beyond the row `first_row` can be converted.

        `use_arrow` decides whether pyarrow may read a CSV file; it may raise `CannotRead`.
        """

    def row_names(self, numbers: npt.NDArray[np.int64]) -> RowNames:
        """Return how messages and result files call the rows with these numbers, counted from 1."""

    def notes_at_end(self) -> list[str]:
        """Return what was found while the rows were read."""


def open_table(
    source: Any, needed: Sequence[str], as_text: Sequence[str] = (), progress: OnProgress | None = None
) -> TableSource:
    """Open a path, a DataFrame or a dict of columns.

    Only the columns in `needed` are converted. In a CSV file, the cells of the columns in `as_text` are texts, even if
    all of them are numbers. `progress` counts the bytes of a CSV file.
    """
    if not isinstance(source, str | Path):
        return FrameSource(source, needed)
    path = Path(source)
    return ParquetSource(path, needed) if path.suffix.lower() in PARQUET else CsvSource(path, needed, as_text, progress)


class CsvSource:
    """A CSV file.

    `num_rows` includes the rows in which every cell is empty, until they are read and left out.
    """

    can_start_anywhere = False

    def __init__(
        self, path: Path, needed: Sequence[str], as_text: Sequence[str] = (), progress: OnProgress | None = None
    ) -> None:
        self.layout = csv_layout(path)
        self.where, self.names, self.notes = str(path), self.layout.header, list(self.layout.notes)
        self.needed, self.as_text, self.progress = needed, as_text, progress
        self.num_rows = self.num_rows_of_file = count_rows(self.layout)
        if not self.num_rows:
            notes_on_empty_rows(self.layout, 0, 0)  # raises the error
        # A spreadsheet shows no lines, so a line number would point to a wrong row after a cell with a line break.
        self.one_line_each = self.layout.num_lines == self.num_rows + 1

    def parts(self, first_row: int = 0, *, use_arrow: bool = True) -> Iterator[Part]:
        with_arrow = use_arrow and csv_columns.USE_ARROW and csv_arrow.can_read(self.layout)
        read, num_read, self.num_rows = csv_arrow.arrow_blocks if with_arrow else csv_blocks, 0, self.num_rows_of_file
        for block in read(self.layout, self.progress):
            numbers = np.delete(np.arange(num_read + 1, num_read + block.num_rows + 1), block.empty_rows)
            num_read += block.num_rows
            self.num_rows -= len(block.empty_rows)
            if len(numbers):
                yield Part(len(numbers), partial(self._columns, block, numbers))

    def row_names(self, numbers: npt.NDArray[np.int64]) -> RowNames:
        return RowNames("line", numbers + 1) if self.one_line_each else RowNames("row", numbers)

    def notes_at_end(self) -> list[str]:
        return notes_on_empty_rows(self.layout, self.num_rows, self.num_rows_of_file - self.num_rows)

    def _columns(self, block: Block, numbers: npt.NDArray[np.int64]) -> Columns:
        cells: dict[str, Any] = {}
        for name in self.needed:
            of_block = block.columns[self.names.index(name)]
            values = None if name in self.as_text else of_block.numbers(decimal_comma=self.layout.decimal_comma)
            cells[name] = CodedTexts(*of_block.distinct()) if values is None else values
        return Columns(self.where, cells, self.row_names(numbers), numbers, self.layout.decimal_comma)


class ParquetSource:
    """A parquet file. Its row groups before the first row are not read."""

    can_start_anywhere = True

    def __init__(self, path: Path, needed: Sequence[str]) -> None:
        self.path, self.where, self.notes = path, str(path), list[str]()
        with reading_parquet(path) as file:
            self.names, self.num_rows = list(file.schema_arrow.names), file.metadata.num_rows
        if not self.num_rows:
            raise ValueError(f"{path} has no rows; give at least one row")
        self.needed = needed

    def parts(self, first_row: int = 0, *, use_arrow: bool = True) -> Iterator[Part]:
        table_of = import_module("pyarrow").Table.from_batches
        with reading_parquet(self.path) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            ends = np.cumsum([0, *sizes])
            first_group = int(np.searchsorted(ends[1:], first_row, side="right"))
            num_read = int(ends[first_group])
            if num_read:
                yield Part(num_read, _not_read)
            groups = list(range(first_group, len(sizes)))
            for batch in file.iter_batches(ROWS_PER_PART, row_groups=groups, columns=list(self.needed)):
                yield Part(batch.num_rows, partial(_columns, partial(table_of, [batch]), self, num_read))
                num_read += batch.num_rows

    def row_names(self, numbers: npt.NDArray[np.int64]) -> RowNames:
        return RowNames("row", numbers)

    def notes_at_end(self) -> list[str]:
        return []


class FrameSource:
    """A DataFrame of pandas or polars, an Arrow table, or a dict of columns."""

    can_start_anywhere = True
    where = "the table"

    def __init__(self, frame: Any, needed: Sequence[str]) -> None:
        names = column_names(frame)
        columns = {str(name): frame[name] for name in names}
        sizes = {len(column) for column in columns.values()}
        if len(columns) < len(names) or len(sizes) != 1 or 0 in sizes:
            columns_of(frame)  # raises an error that says what is wrong
        self.names, self.num_rows, self.notes = list(columns), sizes.pop(), list[str]()
        self.columns = {name: column for name, column in columns.items() if name in needed}

    def parts(self, first_row: int = 0, *, use_arrow: bool = True) -> Iterator[Part]:
        for start in range(0, self.num_rows, ROWS_PER_PART):
            stop = min(start + ROWS_PER_PART, self.num_rows)
            yield Part(stop - start, partial(_columns, partial(self._rows, start, stop), self, start))

    def row_names(self, numbers: npt.NDArray[np.int64]) -> RowNames:
        return RowNames("row", numbers - 1)  # Python counts from 0

    def notes_at_end(self) -> list[str]:
        return []

    def _rows(self, start: int, stop: int) -> dict[str, Any]:
        return {name: getattr(column, "iloc", column)[start:stop] for name, column in self.columns.items()}


def _not_read() -> Columns:
    raise AssertionError("these rows are before the first row and were not read")


def _columns(frame: Callable[[], Any], source: TableSource, num_before: int) -> Columns:
    """Return some rows of a source, before which it has `num_before` rows."""
    columns = columns_of(frame(), source.where)
    numbers = np.arange(num_before + 1, num_before + len(columns.row_names) + 1)
    return replace(columns, row_names=source.row_names(numbers), row_numbers=numbers)
