"""Read a folder of images and a CSV file that gives some of them a label."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import numpy as np

from mnar.datasets.user_files.csv_file import CsvFile, read_csv
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.image_cache import MAX_FILES_IN_NOTE, load_images
from mnar.datasets.user_files.image_files import images_under, refuse_link_out
from mnar.datasets.user_files.label_values import encode_labels, is_missing, label_column, label_names
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import PartlyLabeled
from mnar.types import OnProgress

LABELS, CLASSES = "labels.csv", "classes.txt"
PATH_NAMES = ("path", "image", "file", "filename")


def read_image_csv(
    folder_or_csv: Path,
    *,
    label: str | None = None,
    unlabeled: Collection[str] = (),
    size: int | tuple[int, int] | None = None,
    id: str | None = None,
    like: ModelInputs | None = None,
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Read all images in the folder. An image without a label in the CSV file, or without a row there, is unlabelled.

    Given the folder, the reader takes labels.csv or the only CSV file in it. Paths in the CSV file are relative to the
    folder of the file. A file classes.txt in the folder, with one name per line, fixes the classes and their order; it
    may name classes that have no label yet. `label` is the column of labels, and `unlabeled` are further texts in that
    column that mean "no label". `size` and `progress` are those of `load_images`. `id` is a column that identifies the
    images. `like` is a trained model, whose classes and image shape the data take; then the label column may be
    missing. The row number of an image without a row is 0.
    """
    folder, csv_path = folder_and_csv(Path(folder_or_csv))
    in_folder = images_under(folder)
    table = read_csv(csv_path)
    class_names = class_names_in(folder / CLASSES) if like is None else like.class_names
    label_cells = _label_cells(table, label, like)
    rows, path_notes = rows_by_path(table, folder, set(in_folder))
    cell_of_row = _one_cell_per_path(
        table, rows, label_cells, lambda text: not is_missing(text, class_names or (), unlabeled)
    )

    paths = sorted(rows.keys() | in_folder)
    row_of = [cell_of_row.get(path) for path in paths]
    values = [None if row is None else label_cells[row] for row in row_of]
    row_names = ["" if row is None else table.row_names[row] for row in row_of]
    if like is None:
        try:
            y, known_names, notes = encode_labels(
                values, str(csv_path), class_names, row_names=row_names, unlabeled=unlabeled
            )
        except ValueError as error:  # the missing images may be the reason
            raise ValueError(". ".join([str(error), *path_notes])) from error
    else:
        y, known_names, notes = like.labels(values, str(csv_path), row_names, unlabeled), like.class_names, []
    shape = None if like is None else like.image_shape
    images = load_images(paths, root=folder, size=size, shape=shape, progress=progress)
    kept = np.flatnonzero(images.readable)
    kept_rows = [row_of[place] for place in kept]
    ids, id_notes = None, list[str]()
    if id is not None:
        cells = table.column(id)
        ids, id_notes = identifiers(["" if row is None else cells[row] for row in kept_rows], str(csv_path))
    return PartlyLabeled(
        x=images.x,
        y=y[kept],
        class_names=known_names,
        row_names=[paths[place] for place in kept],
        notes=(*table.notes, *path_notes, *notes, *images.notes, *id_notes),
        row_numbers=[0 if row is None else table.row_numbers[row] for row in kept_rows],
        ids=ids,
        id_name=id,
    )


class ListedImages(NamedTuple):
    """The images of a folder with a CSV file, without their labels."""

    folder: Path
    paths: list[str]  # relative to the folder, sorted
    row_numbers: list[int]  # rows of the CSV file from 1; 0: the image has no row
    ids: list[str] | None
    notes: list[str]


def listed_images(folder_or_csv: Path, *, id: str | None = None) -> ListedImages:
    """Return all images that `read_image_csv` would read, for a model that predicts their labels."""
    folder, csv_path = folder_and_csv(Path(folder_or_csv))
    in_folder, table = images_under(folder), read_csv(csv_path)
    rows, notes = rows_by_path(table, folder, set(in_folder))
    paths = sorted(rows.keys() | in_folder)
    first_row = [rows[path][0] if path in rows else None for path in paths]
    row_numbers = [0 if row is None else table.row_numbers[row] for row in first_row]
    ids, id_notes = None, list[str]()
    if id is not None:
        cells = table.column(id)
        ids, id_notes = identifiers(["" if row is None else cells[row] for row in first_row], str(csv_path))
    return ListedImages(folder, paths, row_numbers, ids, [*table.notes, *notes, *id_notes])


def folder_and_csv(source: Path) -> tuple[Path, Path]:
    """Return the folder of images and the CSV file with the labels."""
    if source.is_file():
        return source.parent, source
    if not source.is_dir():
        raise FileNotFoundError(f"{source} does not exist; name a folder of images, or the CSV file in it")
    found = sorted(path for path in source.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    if source / LABELS in found:
        return source, source / LABELS
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        holds = f"the CSV files {names} and no {LABELS}" if found else "no CSV file"
        raise FileNotFoundError(f"{source} holds {holds}; give the path of the CSV file with the labels instead")
    return source, found[0]


def class_names_in(path: Path) -> tuple[str, ...] | None:
    """Return the names in classes.txt, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); save it again as UTF-8") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise ValueError(f"{path} names no class; write one name per line, or remove the file")
    return names


def _label_cells(table: CsvFile, label: str | None, like: ModelInputs | None) -> list[str]:
    """Return the cells of the label column. Data for a trained model need no such column."""
    if like is not None and (label not in table.header if label else not label_names(table.header)):
        return [""] * len(table.rows)
    return table.column(label or label_column(table.header, str(table.path)))


def rows_by_path(table: CsvFile, folder: Path, images: set[str]) -> tuple[dict[str, list[int]], list[str]]:
    """Return the rows that name each image, and a note on missing images. `images` are the paths in the folder."""
    rows: dict[str, list[int]] = {}
    missing = []
    for row, path_text in enumerate(table.column(path_column(table))):
        path = _path_within(folder, path_text.strip(), images, f"{table.path}, {table.row_names[row]}: ")
        if path is None:
            missing.append(f"{path_text.strip()!r} in {table.row_names[row]}")
        else:
            rows.setdefault(path, []).append(row)
    if missing and not rows:
        raise FileNotFoundError(
            f"{table.path}: none of its {len(missing):,} images exists, such as {missing[0]}; write paths relative to "
            f"{folder}, which holds {len(images):,} images"
        )
    if not missing:
        return rows, []
    listed = ", ".join(missing[:MAX_FILES_IN_NOTE])
    more = f" and {len(missing) - MAX_FILES_IN_NOTE:,} more" if len(missing) > MAX_FILES_IN_NOTE else ""
    return rows, [
        f"{table.path}: {len(missing):,} images do not exist and are left out: {listed}{more}; write paths relative to "
        f"{folder}"
    ]


def _one_cell_per_path(
    table: CsvFile, rows: dict[str, list[int]], labels: list[str], is_label: Callable[[str], bool]
) -> dict[str, int]:
    """Return the row that gives each image its label. Two rows with different labels are an error."""
    chosen = {}
    for path, rows_of_path in rows.items():
        labeled = [row for row in rows_of_path if is_label(labels[row])]
        chosen[path] = (labeled or rows_of_path)[0]
        for row in labeled[1:]:
            label, earlier = labels[row].strip(), labels[labeled[0]].strip()
            if label != earlier:
                raise ValueError(
                    f"{table.path}, {table.row_names[row]}: {path} is {label!r} here and {earlier!r} in "
                    f"{table.row_names[labeled[0]]}; keep one of the two labels"
                )
    return chosen


def path_column(table: CsvFile) -> str:
    """Return the only column that has a usual name of a column of paths."""
    found = [name for name in table.header if name.casefold() in PATH_NAMES]
    if len(found) != 1:
        raise ValueError(
            f"{table.path}, header: which column holds the paths? Call exactly one column "
            f"{' or '.join(PATH_NAMES)}: {', '.join(found or table.header)}"
        )
    return found[0]


def _path_within(folder: Path, text: str, images: set[str], where: str) -> str | None:
    """Return a path in the CSV file relative to `folder`, with forward slashes, or None if there is no such file.

    A path that leads out of the folder is an error.
    """
    if text in images:
        return text
    path = Path(text if Path(text).is_absolute() else text.replace("\\", "/"))
    for start in (folder.absolute(), folder.resolve()):
        if path.is_relative_to(start):
            path = path.relative_to(start)
    if path.is_absolute() or PureWindowsPath(text).drive or ".." in path.parts:
        raise ValueError(f"{where}{text!r} may lead out of {folder}; write paths relative to that folder, without ..")
    name = path.as_posix()
    if name not in images:
        refuse_link_out(folder / path, folder, where)
        if not (folder / path).is_file():
            return None
    return name
