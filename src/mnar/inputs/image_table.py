"""A folder of images, and a CSV file that gives some of them a label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PureWindowsPath

from mnar.inputs.csv_file import CsvFile, read_csv
from mnar.inputs.half_labeled import HalfLabeled
from mnar.inputs.image_cache import Progress, load_images
from mnar.inputs.image_files import images_under, refuse_way_out
from mnar.inputs.label_values import encode_labels, is_missing

LABELS, CLASSES = "labels.csv", "classes.txt"
PATH_NAMES = ("path", "image", "file", "filename")
LABEL_NAMES = ("label", "class", "target")


def read_image_table(
    folder_or_csv: Path,
    *,
    csv: Path | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    size: int | tuple[int, int] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> HalfLabeled:
    """Images that the CSV file does not name are unlabelled, like those it gives no label.

    Paths in the CSV file are relative to the folder, which is the one it lies in when only the file is given. Without
    `csv` it is labels.csv in the folder, or the only CSV file there. classes.txt in the folder, one name a line, fixes
    the classes and their order, also of classes that nobody has labelled yet.
    `size`, `cache` and `progress` are those of `load_images`.
    """
    folder, csv_path = _folder_and_csv(Path(folder_or_csv), csv)
    paths = images_under(folder)
    table = read_csv(csv_path)
    class_names = _class_names(folder / CLASSES)
    labels = _labels_by_path(table, path_column, label_column, folder, set(paths), class_names or ())

    paths = sorted(labels.keys() | paths)
    values = [labels[path][0] if path in labels else None for path in paths]
    lines = [labels[path][1] if path in labels else 0 for path in paths]
    y, known_names, notes = encode_labels(values, str(csv_path), class_names, lines=lines)
    images = load_images(paths, root=folder, size=size, cache=cache, progress=progress)
    names = [path for path, readable in zip(paths, images.readable, strict=True) if readable]
    return HalfLabeled(images.x, y[images.readable], known_names, names, (*table.notes, *notes, *images.notes))


def _folder_and_csv(source: Path, csv: Path | None) -> tuple[Path, Path]:
    if source.is_file():
        if csv is not None:
            raise ValueError(
                f"{source} is a file, and {csv} is given as csv besides; give the folder of images instead"
            )
        return source.parent, source
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is not there; name a folder of images, or the CSV file in it")
    if csv is not None:
        return source, Path(csv)
    found = sorted(path for path in source.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    if source / LABELS in found:
        return source, source / LABELS
    if len(found) != 1:
        there = f"the CSV files {', '.join(path.name for path in found)}" if found else "no CSV file"
        raise FileNotFoundError(f"{source} holds {there} and no {LABELS}; name the one with the labels as csv")
    return source, found[0]


def _class_names(path: Path) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); save it again as UTF-8") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise ValueError(f"{path} names no class; write one name a line, or remove it")
    return names


def _labels_by_path(
    table: CsvFile,
    path_column: str | None,
    label_column: str | None,
    folder: Path,
    images: set[str],
    class_names: Sequence[str],
) -> dict[str, tuple[str, int]]:
    """What the table says of each path, and in which line."""

    def is_label(text: str) -> bool:
        return text.strip() in class_names or not is_missing(text)

    path_texts = table.column(path_column or _column(table, PATH_NAMES, "path_column"))
    label_texts = table.column(label_column or _column(table, LABEL_NAMES, "label_column"))
    labels: dict[str, tuple[str, int]] = {}
    for path_text, label, line in zip(path_texts, label_texts, table.lines, strict=True):
        path = _path_within(folder, path_text.strip(), images, f"{table.path}, line {line}: ")
        earlier, earlier_line = labels.get(path, ("", 0))
        if not is_label(earlier):
            labels[path] = label, line
        elif is_label(label) and label.strip() != earlier.strip():
            raise ValueError(
                f"{table.path}, line {line}: {path} is {label.strip()!r} here and {earlier.strip()!r} in line "
                f"{earlier_line}; keep one of them"
            )
    return labels


def _column(table: CsvFile, names: tuple[str, ...], option: str) -> str:
    found = [name for name in table.header if name.casefold() in names]
    if len(found) != 1:
        how_many = f"the columns {', '.join(found)} all are" if found else "no column is"
        raise ValueError(
            f"{table.path}, header: {how_many} called {' or '.join(names)}; "
            f"name one of {', '.join(table.header)} as {option}"
        )
    return found[0]


def _path_within(folder: Path, text: str, images: set[str], where: str) -> str:
    """Relative to `folder`, with forward slashes."""
    if text in images:
        return text
    path = Path(text if Path(text).is_absolute() else text.replace("\\", "/"))
    for start in (folder.absolute(), folder.resolve()):
        if path.is_relative_to(start):
            path = path.relative_to(start)
    if path.is_absolute() or PureWindowsPath(text).drive or ".." in path.parts:
        raise ValueError(f"{where}{text!r} may lead out of {folder}; write paths relative to it, without ..")
    name = path.as_posix()
    if name not in images:
        refuse_way_out(folder / path, folder, where)
        if not (folder / path).is_file():
            raise FileNotFoundError(
                f"{where}{text!r} is not there; write paths relative to {folder}, where {len(images):,} images are"
            )
    return name
