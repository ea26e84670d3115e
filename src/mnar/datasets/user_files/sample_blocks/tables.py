"""Blocks of new samples that are a table, with the columns of a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.columns import Columns
from mnar.datasets.user_files.csv_arrow import CannotRead
from mnar.datasets.user_files.label_values import label_names
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.sample_blocks.blocks import ROWS_PER_BLOCK, Blocks, SampleBlock
from mnar.datasets.user_files.sample_blocks.table_sources import Part, open_table
from mnar.datasets.user_files.table import columns_of_schema
from mnar.types import OnProgress


class TableBlocks:
    """Blocks of a table. The columns are found by name, and only the columns of the model are converted.

    source      a .csv, .tsv, .txt or .parquet file, a DataFrame, or a dict of columns
    like        what the model takes; the model must take a table
    ignore      columns that the training did not read either: no note says that they are not used
    id          a column that identifies the rows
    progress    counts the bytes of a CSV file

    A label column is not read. A category that the model does not know is encoded as `TableEncoder` does, and a note
    counts its rows. Rows of a CSV file in which every cell is empty are left out. `num_rows` includes such a row until
    it is read, so the number is exact after the last block.
    """

    def __init__(
        self,
        source: Path | Any,
        like: ModelInputs,
        *,
        ignore: Sequence[str] = (),
        id: str | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        if like.encoder is None:
            raise ValueError(f"the new data are a table, but the model takes {like.in_words}; give data of this kind")
        self.encoder, self.id_name, self.schema = like.encoder, id, like.schema
        texts = [*self.schema.categorical_names, *([] if id is None else [id])]
        needed = list(dict.fromkeys([*self.schema.numeric_names, *texts]))
        self.source = open_table(source, needed, texts, progress)
        self.can_start_anywhere = self.source.can_start_anywhere
        where, names = self.source.where, self.source.names
        Columns(where, dict.fromkeys(names, ()), (), ()).require(needed)
        not_noted = {*needed, *ignore, *label_names(names)}
        unused = [name for name in names if name not in not_noted]
        note = [f"{where}: the model does not use these columns: {', '.join(unused)}"] if unused else []
        self.first_notes = [*self.source.notes, *note]
        self.notes = list(self.first_notes)
        self.num_rows: int | None = self.source.num_rows

    def blocks(self, first_row: int = 0) -> Blocks:
        counts = _Counts(self.schema.categorical_names)
        notes_of_source: list[str] = []
        try:
            for rows in self._rows(first_row, counts):
                counts.add(rows)
                self.num_rows = self.source.num_rows
                yield SampleBlock(rows.x, self.source.row_names(rows.numbers), rows.numbers, rows.ids)
            self.num_rows = self.source.num_rows
            notes_of_source = self.source.notes_at_end()
        finally:  # also if the caller takes only some of the blocks
            notes_of_cells = counts.notes(self.source.where, self.encoder.had_others)
            self.notes[:] = [*self.first_notes, *notes_of_source, *notes_of_cells]

    def every_nth(self, every: int, first: int = 0) -> npt.NDArray[np.float32]:
        starts_and_blocks = ((number * ROWS_PER_BLOCK, block) for number, block in enumerate(self.blocks()))
        return np.concatenate([block.x[(first - start) % every :: every] for start, block in starts_and_blocks])

    def _rows(self, first_row: int, counts: _Counts) -> Iterator[_Rows]:
        """Yield the rows of each block. If pyarrow cannot go on, the csv module continues with the next block."""
        num_given = 0
        try:
            for rows in self._encoded(self.source.parts(first_row), first_row, counts):
                yield rows
                num_given += len(rows.x)
        except CannotRead:
            first_row += num_given
            yield from self._encoded(self.source.parts(first_row, use_arrow=False), first_row, counts)

    def _encoded(self, parts: Iterator[Part], first_row: int, counts: _Counts) -> Iterator[_Rows]:
        """Yield the rows from `first_row` on, in blocks. Parts before this row are not converted."""
        num_read, held = 0, None
        for part in parts:
            num_read += part.num_rows
            if num_read <= first_row:
                continue
            rows = self._encoded_part(part.columns(), counts).part(max(0, first_row - num_read + part.num_rows))
            held = rows if held is None else held.followed_by(rows)
            while len(held.x) >= ROWS_PER_BLOCK:
                yield held.part(0, ROWS_PER_BLOCK)
                held = held.part(ROWS_PER_BLOCK)
        if held is not None and len(held.x):
            yield held

    def _encoded_part(self, columns: Columns, counts: _Counts) -> _Rows:
        table = columns_of_schema(columns, self.schema)
        num_known = np.array([len(levels) for levels in self.schema.categories], np.int64)
        is_unknown = table.categorical >= num_known
        for j in np.flatnonzero(is_unknown.any(0)):
            code = table.categorical[is_unknown[:, j].argmax(), j]
            counts.examples.setdefault(self.schema.categorical_names[j], table.categories[j][code])
        ids = None
        if self.id_name is not None:
            ids = ["" if text is None else text.strip() for text in columns.text(self.id_name)]
        return _Rows(self.encoder.transform(table), np.asarray(columns.row_numbers), is_unknown, ids)


class _Rows(NamedTuple):
    """Encoded rows."""

    x: npt.NDArray[np.float32]
    numbers: npt.NDArray[np.int64]
    is_unknown: npt.NDArray[np.bool_]  # [n, q] whether the model does not know the category
    ids: list[str] | None

    def part(self, start: int, stop: int | None = None) -> _Rows:
        return _Rows(*(None if field is None else field[start:stop] for field in self))  # type: ignore[arg-type]

    def followed_by(self, other: _Rows) -> _Rows:
        return _Rows(
            np.concatenate([self.x, other.x]),
            np.concatenate([self.numbers, other.numbers]),
            np.concatenate([self.is_unknown, other.is_unknown]),
            None if self.ids is None or other.ids is None else self.ids + other.ids,
        )


class _Counts:
    """Counts what the notes at the end report."""

    def __init__(self, categorical_names: Sequence[str]) -> None:
        self.names, self.num_without_id = categorical_names, 0
        self.num_unknown = np.zeros(len(categorical_names), np.int64)
        self.examples: dict[str, str] = {}  # an unknown category of each column

    def add(self, rows: _Rows) -> None:
        self.num_unknown += rows.is_unknown.sum(0)
        self.num_without_id += 0 if rows.ids is None else rows.ids.count("")

    def notes(self, where: str, had_others: Sequence[bool]) -> list[str]:
        notes = [
            f"{where}: column {name!r} has {count:,} rows with a category that the model does not know, e.g. "
            f"{self.examples[name]!r}; it counts as {'one of the rare categories' if has_others else 'missing'}"
            for name, count, has_others in zip(self.names, self.num_unknown.tolist(), had_others, strict=True)
            if count
        ]
        if self.num_without_id:
            notes.append(f"{where}: {self.num_without_id:,} rows have no id; use the row number for them")
        return notes
