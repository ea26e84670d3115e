"""Read tables: a CSV or parquet file of features and a partly filled label column, or a DataFrame of features alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.columns import PARQUET, Columns, columns_of, read_columns
from mnar.datasets.user_files.csv_file import read_header
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.label_values import encode_labels, label_column, label_names
from mnar.datasets.user_files.leaks import leaks
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.number_columns import Numbers, notes_on_numbers, without_infinity
from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table
from mnar.types import OnProgress

MAX_LEVELS = 1000
ID_SHARE = 0.9  # a column with more different texts per filled cell is an id or free text
MIN_ROWS = 20  # in a shorter table, an id or a row number cannot be recognised

CodesAndLevels = tuple[npt.NDArray[np.int64], tuple[str, ...]]


def read_table(
    path: Path,
    *,
    label: str | None = None,
    ignore: Sequence[str] = (),
    unlabeled: Collection[str] = (),
    id: str | None = None,
    like: ModelInputs | None = None,
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Read a CSV or parquet file.

    `label` is the label column, `ignore` are the columns to leave out, and `unlabeled` are labels that mean "no label".
    `id` is a column that identifies the rows. `like` is a trained model: then the table has the columns and the classes
    of the model, and the label column may be missing. `progress` counts the bytes of a CSV file.
    """
    columns = read_columns(path, as_text=_text_columns(path, label, id, like), progress=progress)
    columns.require([*(ignore if like is None else ()), *([] if id is None else [id])])
    names = [name for name in columns.names if name not in ignore and name != id]
    ids, notes = identifiers(None if id is None else columns.text(id), columns.where)
    notes = [*columns.notes, *notes]
    if label is None and (like is None or label_names(names)):
        label = label_column(names, columns.where)
        notes.append(f"{columns.where}: column {label!r} is taken as the label")
    if like is not None:
        y, class_names, label_notes = _labels_like(columns, label, unlabeled, like)
        table, feature_notes = _features_like(columns, [name for name in names if name != label], like)
    else:
        assert label is not None  # `label_column` has found it, or raised an error
        columns.require([label])
        where, row_names = f"{columns.where}, column {label!r}", columns.row_names
        y, class_names, label_notes = encode_labels(
            columns.text(label), where, row_names=row_names, unlabeled=unlabeled
        )
        table, feature_notes = _features(columns, [name for name in names if name != label])
        feature_notes += leaks(table, y)
    notes += label_notes + feature_notes
    return PartlyLabeled(table, y, class_names, columns.row_names, tuple(notes), columns.row_numbers, ids, id)


def features_of(frame: Any) -> tuple[Table, list[str]]:
    """Return the table of `Columns`, a DataFrame or a dict, all features, and notes on columns left out.

    `Columns` are emptied, because a large table would be in memory twice.
    """
    columns = frame if isinstance(frame, Columns) else columns_of(frame)
    return _features(columns, columns.names)


def features_like(frame: Any, schema: Table) -> Table:
    """Return new rows with the columns of `schema`, in its order; other columns of the frame are not read."""
    return columns_of_schema(columns_of(frame), schema)


def _text_columns(path: Path, label: str | None, id: str | None, like: ModelInputs | None) -> set[str]:
    """Return the columns of a CSV file whose cells are texts, even if all of them are numbers."""
    if path.suffix.lower() in PARQUET or not path.is_file():
        return set()
    names = {*label_names(read_header(path))} if label is None else {label}
    categorical = () if like is None else like.schema.categorical_names
    return {*names, *categorical, *([] if id is None else [id])}


def _labels_like(
    columns: Columns, label: str | None, unlabeled: Collection[str], like: ModelInputs
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], list[str]]:
    """Return the labels as classes of a trained model, as `encode_labels` returns them. There may be no label."""
    if label is None or label not in columns.cells:
        note = f"{columns.where}: there is no label column, so no row has a label"
        return np.full(len(columns.row_names), UNLABELED, np.int64), like.class_names, [note]
    y = like.labels(columns.text(label), f"{columns.where}, column {label!r}", columns.row_names, unlabeled)
    return y, like.class_names, []


def _features_like(columns: Columns, names: list[str], like: ModelInputs) -> tuple[Table, list[str]]:
    """Return the columns that a trained model takes, and a note on the other columns among `names`."""
    schema = like.schema
    unused = [name for name in names if name not in (*schema.numeric_names, *schema.categorical_names)]
    notes = [f"{columns.where}: the model does not use these columns: {', '.join(unused)}"]
    is_used = like.encoder is not None  # otherwise --features replaces all columns
    return columns_of_schema(columns, schema), notes if unused and is_used else []


def columns_of_schema(columns: Columns, schema: Table) -> Table:
    """Return the columns of `schema`, in its order. Levels that the schema does not have follow those that it has."""
    columns.require([*schema.numeric_names, *schema.categorical_names])
    known = zip(schema.categorical_names, schema.categories, strict=True)
    return _table(
        len(columns.row_names),
        {name: without_infinity(columns.numbers(name)) for name in schema.numeric_names},
        {name: columns.levels(name, levels) for name, levels in known},
    )


def _features(columns: Columns, names: list[str]) -> tuple[Table, list[str]]:
    """Return the named columns as numbers or, if a cell is no number, as levels, and notes on odd columns.

    Each column is removed from `columns` after it was converted, because a large table would be in memory twice.
    """
    numeric: dict[str, Numbers] = {}
    categorical: dict[str, CodesAndLevels] = {}
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
            finite = without_infinity(values)
            objection = _objection_to_numbers(finite)
            if objection is None:
                numeric[name] = finite
                notes += [f"{columns.where}: column {name!r} {note}" for note in notes_on_numbers(values)]
        if objection:
            notes.append(f"{columns.where}: column {name!r} left out: {objection}")
        del columns.cells[name]
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


def _table(num_rows: int, numeric: dict[str, Numbers], categorical: dict[str, CodesAndLevels]) -> Table:
    """Put columns together. A categorical column is given by its codes and its levels.

    Each column is removed from its dict after it was copied, because a large table would be in memory twice.
    """
    numeric_names, categorical_names = tuple(numeric), tuple(categorical)
    categories = tuple(levels for _, levels in categorical.values())
    numbers = np.empty((num_rows, len(numeric)), order="F")  # by columns, as they come and as they are used
    for column, name in enumerate(numeric_names):
        numbers[:, column] = numeric.pop(name)
    codes = np.empty((num_rows, len(categorical)), np.int64, order="F")
    for column, name in enumerate(categorical_names):
        codes[:, column] = categorical.pop(name)[0]
    return Table(numbers, codes, numeric_names, categorical_names, categories)
