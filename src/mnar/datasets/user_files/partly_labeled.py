"""What somebody's own data become, whatever they came as: samples, of which some have a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

UNLABELED = -1


@dataclass(frozen=True)
class Table:
    """Features of mixed kinds, a row a sample."""

    numeric: npt.NDArray[np.float64]  # [n, p]; NaN: missing
    categorical: npt.NDArray[np.int64]  # [n, q] codes; -1: missing
    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]  # what the codes of each categorical column stand for

    @classmethod
    def of_numbers(cls, numeric: npt.NDArray[np.float64]) -> Table:
        num_rows, num_columns = numeric.shape
        return cls(numeric, np.empty((num_rows, 0), np.int64), unnamed_columns(num_columns), (), ())

    def __len__(self) -> int:
        return len(self.numeric)

    def rows(self, index: npt.NDArray[Any]) -> Table:
        return replace(self, numeric=self.numeric[index], categorical=self.categorical[index])


def unnamed_columns(num_columns: int) -> tuple[str, ...]:
    """What the columns of a table of numbers are called that came without names."""
    return tuple(f"x{column}" for column in range(num_columns))


class PartlyLabeled(NamedTuple):
    x: npt.NDArray[Any] | Table  # images uint8 [n, c, h, w], perhaps memory-mapped; features float32 [n, d]; a table
    y: npt.NDArray[np.int64]  # [n]; UNLABELED where there is none
    class_names: tuple[str, ...]  # also of classes that nobody has labelled yet
    row_names: Sequence[str]  # what to call a sample: its path, or its line
    notes: tuple[str, ...] = ()  # what was skipped, guessed, or looks odd, in words

    @property
    def kind(self) -> Literal["images", "features", "table"]:
        if isinstance(self.x, Table):
            return "table"
        return "images" if self.x.ndim == 4 else "features"

    @property
    def is_labeled(self) -> npt.NDArray[np.bool_]:
        return np.not_equal(self.y, UNLABELED)
