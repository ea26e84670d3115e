"""A CSV or parquet file with mixed features and a label column with holes; a DataFrame or a dict of features alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.columns import Columns, columns_of, read_columns
from mnar.datasets.user_files.label_values import encode_labels, label_column
from mnar.datasets.user_files.leaks import leaks
from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table

MOST_LEVELS = 1000
ID_SHARE = 0.9  # levels per filled cell; a column of names or free text is above
FEWEST_ROWS = 20  # for a column to be told to be an id or a row number


def read_table(
    path: Path, *, label: str | None = None, ignore: Sequence[str] = (), unlabeled: Collection[str] = ()
) -> PartlyLabeled:
    """`label` is the label column, `ignore` the columns left out, `unlabeled` labels that mean "not known"."""
    columns = read_columns(path)
    notes = list(columns.notes)
    columns.require(ignore)
    names = [name for name in columns.names if name not in ignore]
    if label is None:
        label = label_column(names, columns.where)
        notes.append(f"{columns.where}: column {label!r} taken as the label")
    columns.require([label])
    y, class_names, label_notes = encode_labels(
        columns.text(label), f"{columns.where}, column {label!r}", lines=columns.lines, unlabeled=unlabeled
    )
    table, feature_notes = _features(columns, [name for name in names if name != label])
    notes += label_notes + feature_notes + leaks(table, y)
    return PartlyLabeled(table, y, class_names, columns.row_names, tuple(notes))


def features_of(frame: Any) -> tuple[Table, list[str]]:
    """Of a DataFrame or a dict of columns that are all features, and notes on those left out."""
    columns = columns_of(frame)
    return _features(columns, columns.names)


def features_like(frame: Any, schema: Table) -> Table:
    """New rows of the kind that was learned from: the schema's columns, in its order, whatever else the frame has."""
    columns = columns_of(frame)
    columns.require([*schema.numeric_names, *schema.categorical_names])
    known = zip(schema.categorical_names, schema.categories, strict=True)
    return _table(
        len(columns.row_names),
        {name: columns.numbers(name) for name in schema.numeric_names},
        {name: columns.levels(name, levels) for name, levels in known},
    )


def _features(columns: Columns, names: list[str]) -> tuple[Table, list[str]]:
    numeric: dict[str, npt.NDArray[np.float64]] = {}
    categorical: dict[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]] = {}
    notes = []
    for name in names:
        try:
            values = columns.numbers(name)
        except ValueError:
            codes, levels = columns.levels(name)
            objection = _objection_to_levels(codes, levels)
            if objection is None:
                categorical[name] = codes, levels
        else:
            objection = _objection_to_numbers(values)
            if objection is None:
                numeric[name] = values
        if objection:
            notes.append(f"{columns.where}: column {name!r} left out: {objection}")
    if not numeric and not categorical:
        raise ValueError(f"{columns.where} has no feature to learn from; {'; '.join(notes) or 'add columns'}")
    return _table(len(columns.row_names), numeric, categorical), notes


def _objection_to_numbers(values: npt.NDArray[np.float64]) -> str | None:
    filled = values[~np.isnan(values)]
    if len(filled) == 0:
        return "every cell is empty"
    if len(filled) == len(values) and np.all(values == values[0]):
        return f"every cell is {values[0]:g}"
    if len(values) >= FEWEST_ROWS and np.all(np.diff(values) == 1):
        return "it counts the rows"
    return None


def _objection_to_levels(codes: npt.NDArray[np.int64], levels: tuple[str, ...]) -> str | None:
    num_filled = np.count_nonzero(codes >= 0)
    if len(levels) == 1 and num_filled == len(codes):
        return f"every cell is {levels[0]!r}"
    looks_like_id = num_filled >= FEWEST_ROWS and len(levels) >= ID_SHARE * num_filled
    if looks_like_id or len(levels) > MOST_LEVELS:
        return f"{len(levels)} different texts in {num_filled} cells, such as {levels[0]!r}: an id or free text"
    return None


def _table(
    num_rows: int,
    numeric: dict[str, npt.NDArray[np.float64]],
    categorical: dict[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]],
) -> Table:
    codes = [codes for codes, _ in categorical.values()]
    return Table(
        numeric=np.column_stack([*numeric.values()]) if numeric else np.empty((num_rows, 0)),
        categorical=np.column_stack(codes) if codes else np.empty((num_rows, 0), np.int64),
        numeric_names=tuple(numeric),
        categorical_names=tuple(categorical),
        categories=tuple(levels for _, levels in categorical.values()),
    )
