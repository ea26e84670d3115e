"""Labels in the label column of a parquet file. It needs pyarrow; all other columns are written as they were read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mnar.datasets.user_files.columns import columns_of, reading_parquet
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.label_values import label_column
from mnar.trained.merge.backup import checked_backup, free_backup, replacing
from mnar.trained.merge.samples import LabeledSamples, plain_labels


class ParquetFile:
    """A `LabelStore` for a parquet file."""

    def __init__(
        self,
        path: Path,
        *,
        label: str | None = None,
        ignore: Sequence[str] = (),
        unlabeled: Collection[str] = (),
        id: str | None = None,
    ) -> None:
        self.path = path
        with reading_parquet(path) as file:
            self.table = file.read()
            first = file.metadata.row_group(0) if file.metadata.num_row_groups else None
            self.compression = "NONE" if first is None else first.column(0).compression
        self.arrow, self.parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        columns = columns_of(self.table, where=str(path), first_row=1)
        columns.require([name for name in (label, id) if name is not None])
        self.label = label or label_column([name for name in columns.names if name not in (*ignore, id)], str(path))
        labels, class_names = plain_labels(columns.text(self.label), None, unlabeled)
        self.samples = LabeledSamples(
            where=str(path),
            row_numbers=list(columns.row_numbers),
            names=columns.row_names,
            labels=labels,
            class_names=class_names,
            ids=None if id is None else identifiers(columns.text(id), str(path))[0],
            unlabeled=unlabeled,
        )

    def check(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> None:
        self._new_table(changes)

    def write(self, changes: Mapping[int, str], new_classes: Sequence[str], backup: Path | None) -> list[Path]:
        kept = free_backup(self.path) if backup is None else checked_backup(backup)
        table = self._new_table(changes)
        with replacing(self.path, kept) as file:
            self.parquet.write_table(table, file, compression=self.compression)
        return [kept]

    def _new_table(self, changes: Mapping[int, str]) -> Any:
        """Return the table with the new labels. The label column keeps its type."""
        position = self.table.column_names.index(self.label)
        field = self.table.schema.field(position)
        is_coded = self.arrow.types.is_dictionary(field.type)
        type_of_values = field.type.value_type if is_coded else field.type
        values = self.table.column(position).to_pylist()
        for place, label in changes.items():
            values[place] = self._value(label, type_of_values)
        column = self.arrow.array(values, type_of_values)
        return self.table.set_column(position, field, column.cast(field.type) if is_coded else column)

    def _value(self, label: str, type_of_values: Any) -> Any:
        """Return a label as a value of the label column."""
        try:
            if self.arrow.types.is_integer(type_of_values):
                return self.arrow.scalar(int(float(label)), type_of_values).as_py()
            if self.arrow.types.is_floating(type_of_values):
                return float(label)
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{self.path}: column {self.label!r} has type {type_of_values}, which cannot hold the class {label!r}; "
                "save the column as texts"
            ) from error
        return label
