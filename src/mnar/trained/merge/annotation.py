"""An annotation: the label that an annotator gave to one sample, in whatever file it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mnar.datasets.user_files.label_values import WHOLE_NUMBER


class Annotation(NamedTuple):
    """One answer of an annotator. At least one of `row`, `sample` and `id` says which sample is meant."""

    where: str  # the file and the line or task; messages begin with it
    label: str  # "": the annotator gave none
    row: int | None = None  # row of the data from 1, without a header; None or 0: unknown
    sample: str | None = None  # the name of the sample: a path, or e.g. "line 7"
    id: str | None = None  # the cell of the id column
    cells: Mapping[str, str] | None = None  # cells of the sample's row in a table, as the annotator saw them
    is_cancelled: bool = False  # the annotator skipped the sample

    @property
    def sample_in_words(self) -> str:
        """What messages call the sample."""
        row = f"row {self.row}" if self.row else ""
        return ", ".join(filter(None, (row, self.id if self.id is not None else self.sample))) or "an unnamed sample"


class Annotations(NamedTuple):
    """The annotations of a file."""

    entries: list[Annotation]
    id_column: str | None  # the column of the data that `Annotation.id` belongs to


def row_number(value: object, where: str) -> int | None:
    """Return the row number in a cell, None if the cell is empty. Spreadsheets may write 7 as 7.0."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    whole = WHOLE_NUMBER.fullmatch(text)
    if whole is None or int(whole.group(1)) < 0:
        raise ValueError(f"{where}: the row is {text!r}; give the number of a row of the data, counted from 1")
    return int(whole.group(1))
