"""Read a folder of images and a CSV file that gives some of them a label."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path, PureWindowsPath

from mnar.datasets.user_files.csv_file import CsvFile, read_csv
from mnar.datasets.user_files.image_cache import load_images
from mnar.datasets.user_files.image_files import images_under, refuse_link_out
from mnar.datasets.user_files.label_values import encode_labels, is_missing, label_column
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
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Read all images in the folder. An image without a label in the CSV file, or without a row there, is unlabelled.

    Given the folder, the reader takes labels.csv or the only CSV file in it. Paths in the CSV file are relative to the
    folder of the file. A file classes.txt in the folder, with one name per line, fixes the classes and their order; it
    may name classes that have no label yet. `label` is the column of labels, and `unlabeled` are further texts in that
    column that mean "no label". `size` and `progress` are those of `load_images`.
    """
    folder, csv_path = _folder_and_csv(Path(folder_or_csv))
    paths = images_under(folder)
    table = read_csv(csv_path)
    class_names = _class_names(folder / CLASSES)
    label_texts = table.column(label or label_column(table.header, str(csv_path)))
    labels = _labels_by_path(
        table, label_texts, folder, set(paths), lambda text: not is_missing(text, class_names or (), unlabeled)
    )

    paths = sorted(labels.keys() | paths)
    values = [labels[path][0] if path in labels else None for path in paths]
    lines = [labels[path][1] if path in labels else 0 for path in paths]
    y, known_names, notes = encode_labels(values, str(csv_path), class_names, lines=lines, unlabeled=unlabeled)
    images = load_images(paths, root=folder, size=size, progress=progress)
    row_names = [path for path, readable in zip(paths, images.readable, strict=True) if readable]
    return PartlyLabeled(images.x, y[images.readable], known_names, row_names, (*table.notes, *notes, *images.notes))


def _folder_and_csv(source: Path) -> tuple[Path, Path]:
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


def _class_names(path: Path) -> tuple[str, ...] | None:
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


def _labels_by_path(
    table: CsvFile, label_texts: list[str], folder: Path, images: set[str], is_label: Callable[[str], bool]
) -> dict[str, tuple[str, int]]:
    """Return, for each path in the table, its label and the line of the label. `images` are the paths in the folder."""
    path_texts = table.column(_path_column(table))
    labels: dict[str, tuple[str, int]] = {}
    for path_text, label, line in zip(path_texts, label_texts, table.lines, strict=True):
        path = _path_within(folder, path_text.strip(), images, f"{table.path}, line {line}: ")
        earlier, earlier_line = labels.get(path, ("", 0))
        if not is_label(earlier):
            labels[path] = label, line
        elif is_label(label) and label.strip() != earlier.strip():
            raise ValueError(
                f"{table.path}, line {line}: {path} is {label.strip()!r} here and {earlier.strip()!r} in line "
                f"{earlier_line}; keep one of the two labels"
            )
    return labels


def _path_column(table: CsvFile) -> str:
    """Return the only column that has a usual name of a column of paths."""
    found = [name for name in table.header if name.casefold() in PATH_NAMES]
    if len(found) != 1:
        raise ValueError(
            f"{table.path}, header: which column holds the paths? Call exactly one column "
            f"{' or '.join(PATH_NAMES)}: {', '.join(found or table.header)}"
        )
    return found[0]


def _path_within(folder: Path, text: str, images: set[str], where: str) -> str:
    """Return a path in the CSV file relative to `folder`, with forward slashes. A path out of it is an error."""
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
            raise FileNotFoundError(
                f"{where}{text!r} does not exist; write paths relative to {folder}, which holds {len(images):,} images"
            )
    return name
