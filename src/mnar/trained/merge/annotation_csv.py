"""Read annotations from a CSV file: the file that `mnar next` wrote with its label column filled in, or a similar one.

Label Studio's export as CSV has the same columns.
"""

from __future__ import annotations

from pathlib import Path

from mnar.datasets.user_files.csv_file import CsvFile, read_csv
from mnar.datasets.user_files.image_csv import PATH_NAMES
from mnar.datasets.user_files.spreadsheet_cells import plain_cell
from mnar.trained.label_studio import CONTROL
from mnar.trained.merge.annotation import Annotation, Annotations, row_number

ROW, SAMPLE, SUGGESTION, CANCELLED = "row", "sample", "suggestion", "was_cancelled"
LABELS = (CONTROL, "choice")  # names of the column with the answers


def read_annotation_csv(path: Path, *, label: str | None, id: str | None) -> Annotations:
    """Read a CSV file with the columns row, sample or both, and the labels in the column `label` or `choice`.

    `label` is a further name of the column with the labels, and `id` the column of ids, if the user named them.
    """
    table = read_csv(path)
    label_name = _first_of((*LABELS, *([label] if label else [])), table, "the labels of the annotators")
    id_column, ids_in = _id_column(table, id)
    named_by = next((name for name in (SAMPLE, *PATH_NAMES) if name in table.header), None)
    if ROW not in table.header and named_by is None and ids_in is None:
        raise ValueError(
            f"{path} has the columns {', '.join(table.header)}, and none says which sample a label belongs to; add a "
            f"column {ROW!r} with row numbers or {SAMPLE!r} with names, or name the column of ids with --id"
        )
    entries = []
    for number, row in enumerate(table.rows):
        cells = {name: plain_cell(cell) for name, cell in zip(table.header, row, strict=True)}
        where = f"{path}, {table.row_names[number]}"
        entries.append(
            Annotation(
                where=where,
                label=cells[label_name].strip(),
                row=row_number(cells.get(ROW), where),
                sample=_text(cells.get(named_by or "")),
                id=_text(cells.get(ids_in or "")),
                is_cancelled=cells.get(CANCELLED, "").strip().casefold() in ("true", "1"),
            )
        )
    return Annotations(entries, id_column)


def _first_of(names: tuple[str, ...], table: CsvFile, what: str) -> str:
    """Return the first of the names that is a column."""
    found = next((name for name in names if name in table.header), None)
    if found is None:
        raise ValueError(
            f"{table.path} has the columns {', '.join(table.header)}, and none is called {' or '.join(names)}; call "
            f"the column with {what} {names[0]!r}"
        )
    return found


def _id_column(table: CsvFile, id: str | None) -> tuple[str | None, str | None]:
    """Return the id column of the data, and the column of this file that holds the ids; None if there is none."""
    if "sample_id" in table.header and "id_column" in table.header:  # Label Studio's export of tasks of `mnar next`
        return id or next(filter(None, table.column("id_column")), None), "sample_id"
    if id is not None:
        return id, id if id in table.header else None
    by_next = table.header[0] == ROW and SUGGESTION in table.header and SAMPLE not in table.header
    return (table.header[1], table.header[1]) if by_next else (None, None)


def _text(cell: str | None) -> str | None:
    """Return a cell without spaces around it, None if the cell is empty."""
    return None if cell is None else cell.strip() or None
