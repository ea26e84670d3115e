"""Check that a file is a backup of the data, before it replaces the data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from mnar.datasets.npz_file import read_npz
from mnar.datasets.user_files.arrays import LABELS, one_of
from mnar.datasets.user_files.columns import PARQUET
from mnar.datasets.user_files.csv_file import count_rows, csv_layout
from mnar.datasets.user_files.image_csv import CLASSES, PATH_NAMES, class_names_in
from mnar.trained.merge.backup import BACKUP_NAME
from mnar.trained.merge.checked_paths import is_same_file

MOST_LISTED = 5


class Outline(NamedTuple):
    """What a merge does not change in a file of data."""

    names: Sequence[str]  # of the columns or arrays
    num_rows: int | None  # None: a merge may add rows

    def __str__(self) -> str:
        more = f" and {len(self.names) - MOST_LISTED} more" if len(self.names) > MOST_LISTED else ""
        rows = "" if self.num_rows is None else f", {self.num_rows:,} rows"
        return f"{', '.join(self.names[:MOST_LISTED])}{more}{rows}"


def check_backup_of(source: Path, backup: Path) -> None:
    """Raise an error if `backup` is no backup of the file `source`.

    A file beside the data with the name of a backup is one. A file of another name must have the same columns or
    arrays, and the same number of rows.
    """
    remedy = f"name the backup that the merge has printed, e.g. {source}.bak-1"
    if is_same_file(source, backup):
        raise ValueError(f"--undo {backup} is the file with the data; {remedy}")
    if not backup.is_file():
        raise ValueError(f"--undo {backup} is no file; {remedy}")
    named = BACKUP_NAME.fullmatch(backup.name)
    if named and named.group(1) == source.name and is_same_file(source.absolute().parent, backup.absolute().parent):
        return
    try:
        if source.name == CLASSES:
            _check_classes(source, backup)
            return
        own, other = _outline(source, source.suffix.lower()), _outline(backup, source.suffix.lower())
        if own != other:
            raise ValueError(f"it has {other}, and the data have {own}")
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(f"{backup} is no backup of {source} ({error}); {remedy}") from error


def _outline(path: Path, suffix: str) -> Outline:
    """Return the outline of a file of the kind that has this suffix."""
    if suffix == ".npz":
        arrays = read_npz(path)
        y = one_of(LABELS, arrays, path)
        return Outline(sorted(arrays), None if y is None else len(arrays[y]))
    if suffix in PARQUET:
        metadata = import_module("pyarrow.parquet").read_metadata(path)
        return Outline(list(metadata.schema.names), metadata.num_rows)
    layout = csv_layout(path)
    lists_images = any(name.lower() in PATH_NAMES for name in layout.header)
    return Outline(layout.header, None if lists_images else count_rows(layout))


def _check_classes(source: Path, backup: Path) -> None:
    """Raise an error unless one list of classes continues the other, because a merge appends classes."""
    own, other = class_names_in(source) or (), class_names_in(backup) or ()
    shared = min(len(own), len(other))
    if own[:shared] != other[:shared]:
        raise ValueError("it lists other classes")
