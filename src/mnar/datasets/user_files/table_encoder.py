"""Encode tables as numbers: standardised and one-hot for a network, codes with NaN for gradient-boosted trees.

scikit-learn's OneHotEncoder would put the columns in another order, and stored models could no longer be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import ceil, frexp
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import Table

MAX_DEVIATIONS = 10.0  # numbers are clipped at this many standard deviations
LARGE_NUMBER = 1e100
MIN_ROWS = 5  # a level with fewer rows gets no column of its own; in a small table, one row in twenty suffices
MAX_COLUMNS = 50  # one-hot columns per categorical feature; its rarer levels share one more column, "other"
MAX_LEVELS = 254  # levels that trees distinguish: HistGradientBoosting allows 255, and "other" is the last


@dataclass(frozen=True)
class TableEncoder:
    """What `fit` learned from a table. The encoder encodes other rows in the same way, and finds columns by name."""

    numeric_names: tuple[str, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]
    numeric_had_missing: tuple[bool, ...]
    categorical_names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]  # per categorical feature, the most frequent level first
    num_levels_alone: tuple[int, ...]  # so many of the levels have a column of their own
    had_others: tuple[bool, ...]  # whether some levels have no column of their own
    categorical_had_missing: tuple[bool, ...]

    @classmethod
    def fit(cls, table: Table) -> TableEncoder:
        """Learn the moments of the numbers and the frequent levels of the categories."""
        moments = [_mean_and_std(column[~np.isnan(column)]) for column in table.numeric.T]
        min_rows = min(MIN_ROWS, ceil(len(table) / 20))
        levels, num_levels_alone, had_others = [], [], []
        for codes, categories in zip(table.categorical.T, table.categories, strict=True):
            counts = np.bincount(codes[codes >= 0], minlength=len(categories))
            by_count = sorted(np.flatnonzero(counts), key=lambda code: (-counts[code], categories[code]))
            num_alone = min(MAX_COLUMNS, int(np.count_nonzero(counts >= min_rows)))
            levels.append(tuple(categories[code] for code in by_count[:MAX_LEVELS]))
            num_levels_alone.append(num_alone)
            had_others.append(len(by_count) > num_alone)
        return cls(
            numeric_names=table.numeric_names,
            means=tuple(mean for mean, _ in moments),
            stds=tuple(std for _, std in moments),
            numeric_had_missing=tuple(bool(np.isnan(column).any()) for column in table.numeric.T),
            categorical_names=table.categorical_names,
            levels=tuple(levels),
            num_levels_alone=tuple(num_levels_alone),
            had_others=tuple(had_others),
            categorical_had_missing=tuple(bool((codes < 0).any()) for codes in table.categorical.T),
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded columns, in order."""
        no_rows = self.schema
        return tuple(name for name, _ in self._encoded_columns(no_rows.numeric, no_rows.categorical))

    @property
    def schema(self) -> Table:
        """The columns that the encoder needs, as a table without rows; `features_like` reads new data by it."""
        return Table(
            numeric=np.empty((0, len(self.numeric_names))),
            categorical=np.empty((0, len(self.categorical_names)), np.int64),
            numeric_names=self.numeric_names,
            categorical_names=self.categorical_names,
            categories=self.levels,
        )

    def transform(self, table: Table) -> npt.NDArray[np.float32]:
        """Return the table for a network: standardised numbers, 0 if missing, and one-hot levels."""
        encoded = np.empty((len(table), len(self.feature_names)), np.float32)
        for column, (_, values) in enumerate(self._encoded_columns(*self._numbers_and_codes(table))):
            encoded[:, column] = values
        return encoded

    def for_trees(self, table: Table) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return numbers and codes side by side, NaN if missing, and a mask of the columns that are codes."""
        numeric, codes = self._numbers_and_codes(table)
        together = np.column_stack([numeric, np.where(codes < 0, np.nan, codes)])
        is_categorical = np.arange(together.shape[1]) >= len(self.numeric_names)
        return together, is_categorical

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as a dict of plain lists, which JSON can store."""
        return {field.name: _lists(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder whose `to_dict` gave these values."""
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise ValueError(
                f"a stored encoder has the entries {sorted(names)}, but this one has {sorted(values)}; fit the encoder "
                "again"
            )
        return cls(**{name: _tuples(value) for name, value in values.items()})

    def _encoded_columns(
        self, numeric: npt.NDArray[np.float64], codes: npt.NDArray[np.int64]
    ) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the name and the values of each encoded column. This method alone decides their order."""
        for j, name in enumerate(self.numeric_names):
            is_missing = np.isnan(numeric[:, j])
            with np.errstate(over="ignore"):  # a difference beyond float64 becomes infinite, and is clipped
                standardised = (numeric[:, j] - self.means[j]) / self.stds[j]
            yield name, np.where(is_missing, 0, np.clip(standardised, -MAX_DEVIATIONS, MAX_DEVIATIONS))
            if self.numeric_had_missing[j]:
                yield f"{name} (missing)", is_missing
        for j, name in enumerate(self.categorical_names):
            num_alone = self.num_levels_alone[j]
            for code, level in enumerate(self.levels[j][:num_alone]):
                yield f"{name} = {level}", codes[:, j] == code
            if self.had_others[j]:
                yield f"{name} (other)", codes[:, j] >= num_alone
            if self.categorical_had_missing[j]:
                yield f"{name} (missing)", codes[:, j] < 0

    def _numbers_and_codes(self, table: Table) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the numbers, and codes into `levels`: -1 if missing, and the number of levels for "other"."""
        _check_columns(self.numeric_names, table.numeric_names, table.categorical_names, "numbers")
        _check_columns(self.categorical_names, table.categorical_names, table.numeric_names, "text")
        numeric = table.numeric
        if table.numeric_names != self.numeric_names:  # otherwise a large table would be copied
            numeric = numeric[:, [table.numeric_names.index(name) for name in self.numeric_names]]
        codes = np.empty((len(table), len(self.categorical_names)), np.int64)
        for j, (name, levels) in enumerate(zip(self.categorical_names, self.levels, strict=True)):
            k = table.categorical_names.index(name)
            position = {level: code for code, level in enumerate(levels)}
            unknown = len(levels) if self.had_others[j] else -1  # -1: no row had "other" when the encoder was fitted
            new_code = [position.get(level, unknown) for level in table.categories[k]]
            codes[:, j] = np.array([*new_code, -1])[table.categorical[:, k]]  # the code -1 reads the last entry, -1
        return numeric, codes


def _mean_and_std(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation, with 1 instead of a standard deviation of 0."""
    if len(values) == 0:
        return 0.0, 1.0
    # The sum of the squares of numbers beyond 1e100 could overflow. A power of two scales without rounding.
    largest = float(np.abs(values).max())
    scale = 2.0 ** (frexp(largest)[1] - 1) if largest > LARGE_NUMBER else 1.0
    scaled = values / scale if scale > 1 else values
    return float(scaled.mean()) * scale, float(scaled.std()) * scale or 1.0


def _check_columns(wanted: tuple[str, ...], present: tuple[str, ...], other: tuple[str, ...], kind: str) -> None:
    """Raise an error if a wanted column is missing, or if it is among the columns of the `other` kind."""
    for name in wanted:
        if name in other:
            raise ValueError(
                f"column {name!r} held {kind} when the encoder was fitted, but does not now; correct the column"
            )
        if name not in present:
            raise ValueError(
                f"there is no column {name!r}, which the encoder was fitted with, only {[*present, *other]}; add it"
            )


def _lists(value: Any) -> Any:
    """Return nested tuples as nested lists."""
    return [_lists(part) for part in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    """Return nested lists as nested tuples."""
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value
