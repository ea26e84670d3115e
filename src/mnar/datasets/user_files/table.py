"""Read tables: a CSV or parquet file of features and a partly filled label column, or a DataFrame of features alone."""

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

MAX_LEVELS = 1000
ID_SHARE = 0.9  # a column with more different texts per filled cell is an id or free text
MIN_ROWS = 20  # in a shorter table, an id or a row number cannot be recognised


def read_table(
    path: Path, *, label: str | None = None, ignore: Sequence[str] = (), unlabeled: Collection[str] = ()
) -> PartlyLabeled:
    """Read a CSV or parquet file.

    `label` is the label column, `ignore` are the columns to leave out, and `unlabeled` are labels that mean "no label".
    """
    columns = read_columns(path)
    notes = list(columns.notes)
    columns.require(ignore)
    names = [name for name in columns.names if name not in ignore]
    if label is None:
        label = label_column(names, columns.where)
        notes.append(f"{columns.where}: column {label!r} is taken as the label")
    columns.require([label])
    y, class_names, label_notes = encode_labels(
        columns.text(label), f"{columns.where}, column {label!r}", lines=columns.lines, unlabeled=unlabeled
    )
    table, feature_notes = _features(columns, [name for name in names if name != label])
    notes += label_notes + feature_notes + leaks(table, y)
    return PartlyLabeled(table, y, class_names, columns.row_names, tuple(notes))


def features_of(frame: Any) -> tuple[Table, list[str]]:
    """Return the table of a DataFrame or a dict whose columns are all features, and notes on columns left out."""
    columns = columns_of(frame)
    return _features(columns, columns.names)


def features_like(frame: Any, schema: Table) -> Table:
    """Return new rows with the columns of `schema`, in its order; other columns of the frame are not read."""
    columns = columns_of(frame)
    columns.require([*schema.numeric_names, *schema.categorical_names])
    known = zip(schema.categorical_names, schema.categories, strict=True)
    return _table(
        len(columns.row_names),
        {name: columns.numbers(name) for name in schema.numeric_names},
        {name: columns.levels(name, levels) for name, levels in known},
    )


def _features(columns: Columns, names: list[str]) -> tuple[Table, list[str]]:
    """Return the named columns as numbers or, if a cell is no number, as levels, and notes on columns left out."""
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
        reasons = "".join(f"; {note}" for note in notes)
        raise ValueError(f"{columns.where} has no feature to learn from{reasons}; add columns with features")
    return _table(len(columns.row_names), numeric, categorical), notes


def _objection_to_numbers(values: npt.NDArray[np.float64]) -> str | None:
    """Return why a numeric column is useless as a feature, or None if it is useful."""
    filled = values[~np.isnan(values)]
    if len(filled) == 0:
        return "every cell is empty"
    if len(filled) == len(values) and np.all(values == values[0]):
        return f"every cell is {values[0]:g}"
    if len(values) >= MIN_ROWS and np.all(np.diff(values) == 1):
        return "it counts the rows"
    return None


def _objection_to_levels(codes: npt.NDArray[np.int64], levels: tuple[str, ...]) -> str | None:
    """Return why a categorical column is useless as a feature, or None if it is useful."""
    num_filled = np.count_nonzero(codes >= 0)
    if len(levels) == 1 and num_filled == len(codes):
        return f"every cell is {levels[0]!r}"
    looks_like_id = num_filled >= MIN_ROWS and len(levels) >= ID_SHARE * num_filled
    if looks_like_id or len(levels) > MAX_LEVELS:
        return f"{len(levels)} different texts in {num_filled} cells, such as {levels[0]!r}: an id or free text"
    return None


def _table(
    num_rows: int,
    numeric: dict[str, npt.NDArray[np.float64]],
    categorical: dict[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]],
) -> Table:
    """Put columns together. A categorical column is given by its codes and its levels."""
    codes = [codes for codes, _ in categorical.values()]
    return Table(
        numeric=np.column_stack([*numeric.values()]) if numeric else np.empty((num_rows, 0)),
        categorical=np.column_stack(codes) if codes else np.empty((num_rows, 0), np.int64),
        numeric_names=tuple(numeric),
        categorical_names=tuple(categorical),
        categories=tuple(levels for _, levels in categorical.values()),
    )
