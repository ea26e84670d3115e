"""The form that the user's data take after reading, whatever files they came from: samples, some with a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

UNLABELED = -1


@dataclass(frozen=True)
class Table:
    """Numeric and categorical features, one row per sample."""

    numeric: npt.NDArray[np.float64]  # [n, p]; NaN: missing
    categorical: npt.NDArray[np.int64]  # [n, q] codes; -1: missing
    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]  # per categorical column: the texts that the codes stand for

    @classmethod
    def of_numbers(cls, numeric: npt.NDArray[np.float64]) -> Table:
        """Return a table of numeric columns that have no names of their own."""
        num_rows, num_columns = numeric.shape
        return cls(numeric, np.empty((num_rows, 0), np.int64), unnamed_columns(num_columns), (), ())

    def __len__(self) -> int:
        return len(self.numeric)

    def rows(self, index: npt.NDArray[Any]) -> Table:
        """Return the table of the rows that `index` selects."""
        return replace(self, numeric=self.numeric[index], categorical=self.categorical[index])


def unnamed_columns(num_columns: int) -> tuple[str, ...]:
    """Return the names x0, x1, ... for columns that came without names."""
    return tuple(f"x{column}" for column in range(num_columns))


class RowNames(Sequence[str]):
    """The names of numbered rows, e.g. "line 2", "line 3". A million names as texts would take 60 MB."""

    def __init__(self, word: str, numbers: Sequence[int] | npt.NDArray[np.int64]) -> None:
        self.word, self.numbers = word, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> RowNames: ...
    def __getitem__(self, row: int | slice) -> str | RowNames:
        if isinstance(row, slice):
            return RowNames(self.word, self.numbers[row])
        return f"{self.word} {self.numbers[row]}"


class PartlyLabeled(NamedTuple):
    """Samples, of which some have a label."""

    x: npt.NDArray[Any] | Table  # images uint8 [n, c, h, w], perhaps memory-mapped; features float32 [n, d]; a table
    y: npt.NDArray[np.int64]  # [n] class numbers; UNLABELED if the sample has no label
    class_names: tuple[str, ...]  # includes classes that have no label yet
    row_names: Sequence[str]  # how messages and result files call a sample: its path, or its line
    notes: tuple[str, ...] = ()  # what was left out, guessed, or looks odd, in words
    row_numbers: Sequence[int] | npt.NDArray[np.int64] = ()  # [n] rows of the file from 1, without header; 0: no row
    ids: Sequence[str] | None = None  # [n] the cells of the id column, if the user named one
    id_name: str | None = None  # the name of that column

    @property
    def kind(self) -> Literal["images", "features", "table"]:
        """The kind of the samples."""
        if isinstance(self.x, Table):
            return "table"
        return "images" if self.x.ndim == 4 else "features"

    @property
    def is_labeled(self) -> npt.NDArray[np.bool_]:
        """Whether each sample has a label: [n]."""
        return np.not_equal(self.y, UNLABELED)
