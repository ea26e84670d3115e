"""Labels of images in a CSV file. An image that the file does not name gets a new row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mnar.datasets.user_files.csv_file import csv_layout, read_csv
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.image_csv import CLASSES, class_names_in, folder_and_csv, path_column, rows_by_path
from mnar.datasets.user_files.image_files import images_under
from mnar.datasets.user_files.label_values import is_missing, label_column
from mnar.trained.merge.backup import free_backup, replacing
from mnar.trained.merge.csv_cells import check_encoding
from mnar.trained.merge.csv_table import write_csv
from mnar.trained.merge.samples import LabeledSamples, plain_labels


class ImageCsv:
    """A `LabelStore` for a folder of images with a CSV file."""

    def __init__(
        self, source: Path, *, label: str | None = None, unlabeled: Collection[str] = (), id: str | None = None
    ) -> None:
        self.folder, path = folder_and_csv(source)
        in_folder, table = images_under(self.folder), read_csv(path)
        self.layout = csv_layout(path)
        self.label, self.path_column = label or label_column(table.header, str(path)), path_column(table)
        rows, _ = rows_by_path(table, self.folder, {*in_folder})
        self.classes_file = self.folder / CLASSES
        listed = class_names_in(self.classes_file)
        cells = table.column(self.label)
        # The rows of an image that `mnar train` reads its label from: all that have a label, or its first row.
        self.rows_of = {
            path: [row for row in numbers if not is_missing(cells[row], listed or (), unlabeled)] or numbers[:1]
            for path, numbers in rows.items()
        }
        paths = sorted(rows.keys() | in_folder)
        first_row = [self.rows_of[path][0] if path in rows else None for path in paths]
        texts = [None if row is None else cells[row] for row in first_row]
        labels, class_names = plain_labels(texts, listed, unlabeled)
        ids = None
        if id is not None:
            id_cells = table.column(id)
            ids, _ = identifiers(["" if row is None else id_cells[row] for row in first_row], str(path))
        self.row_numbers = table.row_numbers
        self.samples = LabeledSamples(
            where=str(source),
            row_numbers=[0 if row is None else table.row_numbers[row] for row in first_row],
            names=paths,
            labels=labels,
            class_names=class_names,
            ids=ids,
            names_identify=True,
            unlabeled=unlabeled,
        )

    def check(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> None:
        cells, rows = self._edits(changes)
        check_encoding(self.layout, [*cells.values(), *(text for row in rows for text in row.values())])

    def write(self, changes: Mapping[int, str], new_classes: Sequence[str], backup: Path | None) -> list[Path]:
        backups = []
        if new_classes and self.classes_file.is_file():
            # First: a class without labels is no error, but a label that is not in the list of classes is one.
            kept = free_backup(self.classes_file)
            with replacing(self.classes_file, kept) as file:
                file.write(_with_lines(self.classes_file.read_bytes(), new_classes))
            backups.append(kept)
        return [*write_csv(self.layout, self.label, *self._edits(changes), backup), *backups]

    def _edits(self, changes: Mapping[int, str]) -> tuple[dict[int, str], list[dict[str, str]]]:
        """Return the new cells of the label column by row number, and new rows for images that have none."""
        cells, rows = dict[int, str](), list[dict[str, str]]()
        for place, label in changes.items():
            path = self.samples.names[place]
            if path in self.rows_of:
                cells |= {self.row_numbers[row]: label for row in self.rows_of[path]}
            else:
                rows.append({self.path_column: path, self.label: label})
        return cells, rows


def _with_lines(content: bytes, lines: Sequence[str]) -> bytes:
    """Return the content of a text file with further lines."""
    end = b"\r\n" if b"\r\n" in content else b"\n"
    if not content.endswith((b"\n", b"\r")):
        content += end
    return content + b"".join(line.encode() + end for line in lines)
