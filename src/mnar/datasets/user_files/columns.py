"""Named columns of a CSV file, a parquet file, a DataFrame or a dict, whose cells are read as numbers or as levels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.csv_file import read_csv
from mnar.datasets.user_files.label_values import is_missing_feature

PARQUET = (".parquet", ".pq")
Cells = npt.NDArray[Any] | Sequence[str | None]  # numbers, or text


@dataclass(frozen=True)
class Columns:
    """Columns as they were read: nothing is decided yet about their types."""

    where: str  # the file; error messages begin with it
    cells: dict[str, Cells]
    row_names: Sequence[str]
    lines: Sequence[int] | None = None  # the line of each row in the file
    decimal_comma: bool = False
    categories: frozenset[str] = frozenset()  # columns in which a number is a name
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return list(self.cells)

    def require(self, names: Iterable[str]) -> None:
        """Raise an error if one of these columns is missing."""
        absent = [name for name in names if name not in self.cells]
        if absent:
            raise ValueError(
                f"{self.where} has no column {', '.join(map(repr, absent))}; its columns are {', '.join(self.names)}. "
                "Check the spelling, or add the column"
            )

    def text(self, name: str) -> Sequence[str | None]:
        """Return the cells of a column as text."""
        cells = self.cells[name]
        return [str(number) for number in cells.tolist()] if isinstance(cells, np.ndarray) else cells

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column as numbers: NaN if a cell is missing or infinite. A cell that is no number is an error."""
        numbers = self._numbers(name)
        return np.where(np.isfinite(numbers), numbers, np.nan)

    def _numbers(self, name: str) -> npt.NDArray[np.float64]:
        cells = self.cells[name]
        if isinstance(cells, np.ndarray):
            return cells.astype(np.float64)
        if name in self.categories:
            raise ValueError(f"{self.where}: {name!r} holds categories, not numbers; change the type of the column")
        value = {}
        for cell in dict.fromkeys(cells):
            if cell is None or is_missing_feature(cell):
                value[cell] = np.nan
                continue
            try:
                value[cell] = _number(cell, self.decimal_comma)
            except ValueError as error:
                row = self.row_names[cells.index(cell)]
                raise ValueError(
                    f"{self.where}, {row}: {name!r} is {cell!r}, not a number; correct the cell"
                ) from error
        return np.array([value[cell] for cell in cells], np.float64)

    def levels(self, name: str, known: tuple[str, ...] = ()) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Return the code of each cell, -1 if it is missing, and the levels: the texts that the codes stand for.

        The levels are those in `known`, then the other texts of the column, sorted.
        """
        cells = self.text(name)
        level = {cell: None if is_missing_feature(cell) else str(cell).strip() for cell in dict.fromkeys(cells)}
        new = {text for text in level.values() if text is not None}.difference(known)
        levels = (*known, *sorted(new))
        code = {text: code for code, text in enumerate(levels)}
        code_of_cell = {cell: -1 if text is None else code[text] for cell, text in level.items()}
        return np.array([code_of_cell[cell] for cell in cells], np.int64), levels


def _number(cell: str, decimal_comma: bool) -> float:
    if "_" in cell:
        raise ValueError("only Python reads 1_000 as a number")
    return float(cell.replace(",", ".") if decimal_comma else cell)


def read_columns(path: Path) -> Columns:
    """Read a parquet or CSV file, depending on its suffix."""
    path = Path(path)
    return _parquet(path) if path.suffix.lower() in PARQUET else _csv(path)


def _csv(path: Path) -> Columns:
    file = read_csv(path)
    return Columns(
        where=str(path),
        cells=dict(zip(file.header, zip(*file.rows, strict=True), strict=True)),
        row_names=[f"line {line}" for line in file.lines],
        lines=file.lines,
        decimal_comma=file.separator == ";",  # spreadsheets that write 3,5 separate the cells by semicolons
        notes=file.notes,
    )


def _parquet(path: Path) -> Columns:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(
            f"reading {path} needs the package pyarrow: pip install 'mnar[hf]', or save the table as CSV"
        ) from error
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; name a CSV or parquet file")
    try:
        table = parquet.ParquetFile(path).read()
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a complete parquet file ({error}); write the file again") from error
    return columns_of(table, where=str(path))


def columns_of(frame: Any, where: str = "the table") -> Columns:
    """Return the columns of a DataFrame, an Arrow table or a dict of columns."""
    names = list(frame) if isinstance(frame, Mapping) else list(getattr(frame, "column_names", frame.columns))
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"{where}: two columns are called {name!r}; rename one of them")
    cells = {str(name): _cells(frame[name]) for name in names}
    if not cells:
        raise ValueError(f"{where} has no columns; give a label column and at least one feature")
    sizes = {name: len(column) for name, column in cells.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{where}: the columns have different lengths, {sizes}; give one cell per row")
    num_rows = next(iter(sizes.values()))
    if num_rows == 0:
        raise ValueError(f"{where} has no rows; give at least one row")
    categories = frozenset(str(name) for name in names if _is_category(frame[name]))
    return Columns(where, cells, [f"row {row}" for row in range(num_rows)], categories=categories)


def _is_category(column: Any) -> bool:
    """Whether the column of a DataFrame has pandas' type "category"."""
    return str(getattr(column, "dtype", "")) == "category"


def _cells(column: Any) -> Cells:
    """Return a column of numbers as an array, and any other column as texts."""
    if _is_category(column):
        column = column.astype(object)  # otherwise a missing cell would turn 1 into 1.0
    values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
    if values.ndim != 1:
        raise ValueError(f"a column has shape {values.shape}; give one cell per row")
    if values.dtype.kind in "iuf":
        return values
    if values.dtype.kind in "mM":
        values = values.astype(str)  # tolist() would return dates as numbers of nanoseconds
    return [None if value is None else str(value) for value in values.tolist()]
