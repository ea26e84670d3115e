"""Labels in the label column of a table: a CSV file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mnar.datasets.user_files.csv_file import CsvLayout, csv_layout, csv_rows
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.label_values import label_column
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.trained.merge.backup import checked_backup, free_backup, replacing
from mnar.trained.merge.csv_cells import check_encoding, edited_csv
from mnar.trained.merge.samples import Cells, LabeledSamples, plain_labels


class CsvTable:
    """A `LabelStore` for a CSV file."""

    def __init__(
        self,
        path: Path,
        *,
        label: str | None = None,
        ignore: Sequence[str] = (),
        unlabeled: Collection[str] = (),
        id: str | None = None,
    ) -> None:
        self.layout = csv_layout(path)
        header = self.layout.header
        for name in (label, id):
            if name is not None and name not in header:
                raise ValueError(f"{path} has no column {name!r}, only {', '.join(header)}; name one of these")
        self.label = label or label_column([name for name in header if name not in (*ignore, id)], str(path))
        position, id_position = header.index(self.label), None if id is None else header.index(id)
        rows, texts, ids, last = [], [], [], 0
        for last, _, cells in csv_rows(self.layout):
            if any(cells):
                rows.append(last)
                texts.append(cells[position])
                ids.append("" if id_position is None else cells[id_position])
        labels, class_names = plain_labels(texts, None, unlabeled)
        # as `read_csv_columns` names the rows
        names = RowNames("line", [row + 1 for row in rows])
        if self.layout.num_lines != last + 1:
            names = RowNames("row", rows)
        self.samples = LabeledSamples(
            where=str(path),
            row_numbers=rows,
            names=names,
            labels=labels,
            class_names=class_names,
            ids=identifiers(ids, str(path))[0] if id is not None else None,
            unlabeled=unlabeled,
            cells_of=self._cells,
        )

    def check(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> None:
        check_encoding(self.layout, changes.values())

    def write(self, changes: Mapping[int, str], new_classes: Sequence[str], backup: Path | None) -> list[Path]:
        return write_csv(self.layout, self.label, self._new_cells(changes), (), backup)

    def _new_cells(self, changes: Mapping[int, str]) -> dict[int, str]:
        return {self.samples.row_numbers[place]: label for place, label in changes.items()}

    def _cells(self, rows: Collection[int]) -> Cells:
        """Return the cells of these rows, without the label."""
        header = self.layout.header
        if not rows:
            return {}
        return {
            number: {name: cell for name, cell in zip(header, cells, strict=True) if name != self.label}
            for number, _, cells in csv_rows(self.layout)
            if number in rows
        }


def write_csv(
    layout: CsvLayout,
    column: str,
    new_cells: Mapping[int, str],
    new_rows: Sequence[Mapping[str, str]],
    backup: Path | None,
) -> list[Path]:
    """Write a CSV file with new cells and rows, and return its backup."""
    kept = free_backup(layout.path) if backup is None else checked_backup(backup)
    with replacing(layout.path, kept) as file:
        for piece in edited_csv(layout, column, new_cells, new_rows):
            file.write(piece)
    return [kept]
