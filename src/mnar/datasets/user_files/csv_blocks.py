"""Read the rows of a CSV file in blocks, with the columns of each block, by Python's csv module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.csv_file import CsvLayout, csv_rows
from mnar.datasets.user_files.label_values import USUAL_MISSING_FEATURES
from mnar.types import OnProgress

ROWS_PER_BLOCK = 10_000
AS_NAN = dict.fromkeys(USUAL_MISSING_FEATURES, "nan")

Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


class Cells(Protocol):
    """The cells of a column in one block of rows."""

    def numbers(self, *, decimal_comma: bool) -> Numbers | None:
        """Return the cells as numbers, NaN if missing, or None if some are not plainly numbers or missing."""

    def distinct(self) -> tuple[list[str], Codes]:
        """Return different texts in order of appearance, and the position of each cell's text among them."""


class Block(NamedTuple):
    """Consecutive rows."""

    columns: Sequence[Cells]  # without the empty rows; no column if all rows are empty
    num_rows: int  # with the empty rows
    empty_rows: list[int]  # the rows, from 0 in this block, in which every cell is empty


class TextCells:
    """The cells of a column as Python texts."""

    def __init__(self, cells: Sequence[str], *, check_underscores: bool) -> None:
        self.cells, self.check_underscores = cells, check_underscores

    def numbers(self, *, decimal_comma: bool) -> Numbers | None:
        cells = self.cells
        if self.check_underscores and any("_" in cell for cell in cells):  # Python would read 1_000 as 1000
            return None
        if decimal_comma:
            cells = [cell.replace(",", ".") for cell in cells]
        for texts in (cells, map(AS_NAN.get, cells, cells)):
            try:
                return np.fromiter(map(float, texts), np.float64, len(cells))
            except ValueError:
                continue
        return None

    def distinct(self) -> tuple[list[str], Codes]:
        code_of = {text: code for code, text in enumerate(dict.fromkeys(self.cells))}
        return list(code_of), np.fromiter(map(code_of.__getitem__, self.cells), np.int32, len(self.cells))


def csv_blocks(layout: CsvLayout, progress: OnProgress | None = None) -> Iterator[Block]:
    """Yield all rows of the file. `progress` counts bytes."""
    rows: list[list[str]] = []
    empty_rows: list[int] = []

    def block() -> Block:
        columns = [TextCells(cells, check_underscores=layout.has_underscores) for cells in zip(*rows, strict=True)]
        return Block(columns, len(rows) + len(empty_rows), empty_rows)

    for _, _, cells in csv_rows(layout, progress):
        if any(cells):
            rows.append(cells)
        else:
            empty_rows.append(len(rows) + len(empty_rows))
        if len(rows) == ROWS_PER_BLOCK:
            yield block()
            rows, empty_rows = [], []
    yield block()
