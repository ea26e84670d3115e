"""Named columns of a CSV file, a parquet file, a DataFrame or a dict, whose cells are read as numbers or as levels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.csv_columns import CodedTexts, number, read_csv_columns
from mnar.datasets.user_files.label_values import is_missing_feature
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.types import OnProgress

PARQUET = (".parquet", ".pq")
Cells = npt.NDArray[Any] | CodedTexts | Sequence[str | None]  # numbers, or text


@dataclass(frozen=True)
class Columns:
    """Columns as they were read: nothing is decided yet about their types."""

    where: str  # the file; error messages begin with it
    cells: dict[str, Cells]
    row_names: Sequence[str]
    row_numbers: Sequence[int] | npt.NDArray[np.int64]  # from 1, without the header
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
        if isinstance(cells, CodedTexts):
            return cells.cells()
        return [str(number) for number in cells.tolist()] if isinstance(cells, np.ndarray) else cells

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column as numbers, NaN if a cell is missing. A cell that is no number is an error."""
        cells = self.cells[name]
        if isinstance(cells, np.ndarray):
            return np.asarray(cells, np.float64)
        if name in self.categories:
            raise ValueError(f"{self.where}: {name!r} holds categories, not numbers; change the type of the column")
        texts, codes = self._coded(name)
        values = np.empty(len(texts), np.float64)
        for code, text in enumerate(texts):
            try:
                values[code] = np.nan if text is None else number(text, self.decimal_comma)
            except ValueError as error:
                row = self.row_names[int(np.argmax(codes == code))]
                raise ValueError(
                    f"{self.where}, {row}: {name!r} is {text!r}, not a number; correct the cell"
                ) from error
        return values[codes]

    def levels(self, name: str, known: tuple[str, ...] = ()) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Return the code of each cell, -1 if it is missing, and the levels: the texts that the codes stand for.

        The levels are those in `known`, then the other texts of the column, sorted.
        """
        texts, codes = self._coded(name)
        level = [None if text is None or is_missing_feature(text) else text.strip() for text in texts]
        new = {text for text in level if text is not None}.difference(known)
        levels = (*known, *sorted(new))
        code_of = {text: code for code, text in enumerate(levels)}
        return np.array([-1 if text is None else code_of[text] for text in level], np.int64)[codes], levels

    def _coded(self, name: str) -> tuple[Sequence[str | None], npt.NDArray[np.int64]]:
        """Return the different texts of a column in order of appearance, and the position of each cell's text."""
        cells = self.cells[name]
        if isinstance(cells, CodedTexts):
            return cells.texts, cells.codes.astype(np.int64)
        texts = self.text(name)
        code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        return list(code_of), np.fromiter(map(code_of.__getitem__, texts), np.int64, len(texts))


def read_columns(path: Path, *, as_text: Collection[str] = (), progress: OnProgress | None = None) -> Columns:
    """Read a parquet or CSV file, depending on its suffix.

    In a CSV file, the cells of the columns in `as_text` are texts, even if all are numbers. A parquet file stores the
    type of a column.
    """
    path = Path(path)
    if path.suffix.lower() in PARQUET:
        return _parquet(path)
    file = read_csv_columns(path, as_text=as_text, progress=progress)
    cells: dict[str, Cells] = {**file.cells}
    return Columns(str(path), cells, file.row_names, file.row_numbers, file.decimal_comma, notes=file.notes)


def _parquet(path: Path) -> Columns:
    with reading_parquet(path) as file:
        table = file.read()
    return columns_of(table, where=str(path), first_row=1)


@contextmanager
def reading_parquet(path: Path) -> Iterator[Any]:
    """Open a parquet file as a `pyarrow.parquet.ParquetFile`. An error of pyarrow becomes one that names the file."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(
            f"reading {path} needs the package pyarrow: pip install 'mnar[fast]', or save the table as CSV"
        ) from error
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; name a CSV or parquet file")
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except MemoryError as error:  # a damaged file may ask for any size
        raise ValueError(
            f"{path} does not fit into the memory, or is damaged ({error}); save fewer rows or columns, or write the "
            "file again"
        ) from error
    except (import_module("pyarrow").ArrowException, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path} is not a complete parquet file ({error}); write the file again") from error


def columns_of(frame: Any, where: str = "the table", first_row: int = 0) -> Columns:
    """Return the columns of a DataFrame, an Arrow table or a dict of columns.

    Messages count the rows from `first_row`: from 0 in Python, and from 1 in a file.
    """
    names = column_names(frame)
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"{where}: two columns are called {name!r}; rename one of them")
    cells = {str(name): _cells(frame[name], f"{where}: column {name!r}") for name in names}
    if not cells:
        raise ValueError(f"{where} has no columns; give a label column and at least one feature")
    sizes = {name: len(column) for name, column in cells.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{where}: the columns have different lengths, {sizes}; give one cell per row")
    num_rows = next(iter(sizes.values()))
    if num_rows == 0:
        raise ValueError(f"{where} has no rows; give at least one row")
    categories = frozenset(str(name) for name in names if _is_category(frame[name]))
    row_names = RowNames("row", range(first_row, first_row + num_rows))
    return Columns(where, cells, row_names, range(1, num_rows + 1), categories=categories)


def column_names(frame: Any) -> list[Any]:
    """Return the names of the columns as the frame stores them: they need not be texts."""
    return list(frame) if isinstance(frame, Mapping) else list(getattr(frame, "column_names", frame.columns))


def _is_category(column: Any) -> bool:
    """Whether the column of a DataFrame has pandas' type "category"."""
    return str(getattr(column, "dtype", "")) == "category"


def _cells(column: Any, where: str) -> Cells:
    """Return a column of numbers as an array, and any other column as texts."""
    if _is_category(column):
        column = column.astype(object)  # otherwise a missing cell would turn 1 into 1.0
    if hasattr(column, "to_pylist"):
        values = _values_of_arrow(column, where)
    else:
        values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
    if values.ndim != 1:
        raise ValueError(f"a column has shape {values.shape}; give one cell per row")
    if values.dtype.kind in "iuf":
        return values
    if values.dtype.kind in "mM":
        values = values.astype(str)  # tolist() would return dates as numbers of nanoseconds
    return [None if value is None else str(value) for value in values.tolist()]


def _values_of_arrow(column: Any, where: str) -> npt.NDArray[Any]:
    """Return an Arrow column as an array: numbers, or objects of which the texts are the cells."""
    unreadable = (ValueError, TypeError, NotImplementedError, import_module("pyarrow").ArrowException)
    try:
        if hasattr(column.type, "index_type"):  # to_numpy would return the last category for a missing cell
            column = column.cast(column.type.value_type)
        try:
            values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        except unreadable:  # e.g. a time of day in nanoseconds, which Python does not have
            values = column.cast("string").to_numpy(zero_copy_only=False)
    except MemoryError:
        raise
    except unreadable as error:
        raise ValueError(
            f"{where} holds cells of type {column.type}, which are read neither as numbers nor as texts ({error}); "
            "save them as numbers or texts"
        ) from error
    return values
