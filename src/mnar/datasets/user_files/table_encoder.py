"""Tables as numbers: standardised and one-hot for a network, codes with NaN for gradient-boosted trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import Table

LARGEST = 10.0  # standard deviations; beyond, a number is clipped
RAREST = 5  # rows of a level with a column of its own, or one row in twenty of a small table
MOST_COLUMNS = 50  # of one categorical feature; its rarer levels share one more, "other"
MOST_LEVELS = 254  # that trees see; HistGradientBoosting takes 255, and "other" is the last


@dataclass(frozen=True)
class TableEncoder:
    """What the rows of `fit` had; other rows are encoded the same way, their columns found by name."""

    numeric_names: tuple[str, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]
    numeric_had_missing: tuple[bool, ...]
    categorical_names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]  # of each categorical feature, the most frequent first
    num_levels_alone: tuple[int, ...]  # so many of them have a column of their own
    had_others: tuple[bool, ...]  # some level had none
    categorical_had_missing: tuple[bool, ...]

    @classmethod
    def fit(cls, table: Table) -> TableEncoder:
        moments = [_mean_and_std(column[~np.isnan(column)]) for column in table.numeric.T]
        rarest = min(RAREST, ceil(len(table) / 20))
        levels: list[tuple[str, ...]] = []
        num_levels_alone: list[int] = []
        had_others: list[bool] = []
        for codes, categories in zip(table.categorical.T, table.categories, strict=True):
            counts = np.bincount(codes[codes >= 0], minlength=len(categories))
            by_count = sorted(np.flatnonzero(counts), key=lambda code: (-counts[code], categories[code]))
            levels.append(tuple(categories[code] for code in by_count[:MOST_LEVELS]))
            num_alone = min(MOST_COLUMNS, int(np.count_nonzero(counts >= rarest)))
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
        names = []
        for name, had_missing in zip(self.numeric_names, self.numeric_had_missing, strict=True):
            names += [name] + [f"{name} (missing)"] * had_missing
        for j, name in enumerate(self.categorical_names):
            names += [f"{name} = {level}" for level in self.levels[j][: self.num_levels_alone[j]]]
            names += [f"{name} (other)"] * self.had_others[j] + [f"{name} (missing)"] * self.categorical_had_missing[j]
        return tuple(names)

    @property
    def schema(self) -> Table:
        """The columns it asks for, as a table without rows: what `features_like` reads new data by."""
        return Table(
            numeric=np.empty((0, len(self.numeric_names))),
            categorical=np.empty((0, len(self.categorical_names)), np.int64),
            numeric_names=self.numeric_names,
            categorical_names=self.categorical_names,
            categories=self.levels,
        )

    def transform(self, table: Table) -> npt.NDArray[np.float32]:
        numeric, codes = self._by_name(table)
        encoded = np.zeros((len(table), len(self.feature_names)), np.float32)
        column = 0
        for j, had_missing in enumerate(self.numeric_had_missing):
            is_missing = np.isnan(numeric[:, j])
            standard = np.clip((numeric[:, j] - self.means[j]) / self.stds[j], -LARGEST, LARGEST)
            encoded[:, column] = np.where(is_missing, 0, standard)
            if had_missing:
                encoded[:, column + 1] = is_missing
            column += 1 + had_missing
        for j, num_alone in enumerate(self.num_levels_alone):
            for code in range(num_alone):
                encoded[:, column + code] = codes[:, j] == code
            column += num_alone
            if self.had_others[j]:
                encoded[:, column] = codes[:, j] >= num_alone
                column += 1
            if self.categorical_had_missing[j]:
                encoded[:, column] = codes[:, j] < 0
                column += 1
        return encoded

    def for_trees(self, table: Table) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Numbers and codes side by side, NaN where missing, and which columns are codes."""
        numeric, codes = self._by_name(table)
        together = np.column_stack([numeric, np.where(codes < 0, np.nan, codes)])
        is_categorical = np.arange(together.shape[1]) >= len(self.numeric_names)
        return together, is_categorical

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        as_lists: dict[str, Any] = _lists(asdict(self))
        return as_lists

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableEncoder:
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise ValueError(f"an encoder has {sorted(names)}, this one {sorted(values)}; fit it again")
        return cls(**{name: _tuples(value) for name, value in values.items()})

    def _by_name(self, table: Table) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The numbers, and codes into `levels`; any other level has the code after the last."""
        _check_columns(self.numeric_names, table.numeric_names, table.categorical_names, "numbers")
        _check_columns(self.categorical_names, table.categorical_names, table.numeric_names, "text")
        numeric = table.numeric[:, [table.numeric_names.index(name) for name in self.numeric_names]]
        codes = np.empty((len(table), len(self.categorical_names)), np.int64)
        for j, (name, levels) in enumerate(zip(self.categorical_names, self.levels, strict=True)):
            k = table.categorical_names.index(name)
            position = {level: code for code, level in enumerate(levels)}
            new_code = [position.get(level, len(levels)) for level in table.categories[k]]
            codes[:, j] = np.array([*new_code, -1])[table.categorical[:, k]]  # missing is -1, the last here too
        return numeric, codes


def _mean_and_std(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    if len(values) == 0:
        return 0.0, 1.0
    return float(values.mean()), float(values.std()) or 1.0


def _check_columns(wanted: tuple[str, ...], present: tuple[str, ...], other: tuple[str, ...], kind: str) -> None:
    for name in wanted:
        if name in other:
            raise ValueError(f"column {name!r} held {kind} when the encoder was fitted and does not now; mend it")
        if name not in present:
            raise ValueError(f"no column {name!r}, which the encoder was fitted with; there are {[*present, *other]}")


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lists(part) for name, part in value.items()}
    return [_lists(part) for part in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value
