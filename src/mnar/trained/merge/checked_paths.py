"""Check, before a merge changes anything, that the files it writes replace no other file."""

from __future__ import annotations

import os
from pathlib import Path

from mnar.atomic_write import check_writable
from mnar.datasets.user_files.image_csv import folder_and_csv
from mnar.trained.merge.backup import BACKUP_NAME, checked_backup

PART = ".part"  # the ending of files that are being written
READ_IN_FOLDERS = (".csv", ".txt", ".json")  # a file with such an ending can change what a folder of data is


def check_paths(source: Path, annotations: Path, backup: Path | None, report: Path | None) -> None:
    """Raise an error unless the annotations are another file than the data, and the outputs are new files."""
    data = _label_file(source)
    if data is not None and is_same_file(annotations, data):
        raise ValueError(
            f"{annotations} is the file with the data, so it cannot be the annotations too; name the file that the "
            "annotators filled in, and keep it outside of a folder of data"
        )
    outputs = [(option, path) for option, path in (("--backup", backup), ("--report", report)) if path is not None]
    for option, path in outputs:
        for what, other in (("the data", data), ("the annotations", annotations)):
            if other is not None and is_same_file(path, other):
                raise ValueError(f"{option} {path} is the file with {what}, which would be lost; name another file")
        if path.suffix == PART:
            raise ValueError(f"{option} is {path}, but files that end in {PART} are temporary; choose another name")
        in_data = source.is_dir() and path.absolute().parent.resolve() == source.resolve()
        if in_data and path.suffix.lower() in READ_IN_FOLDERS:
            raise ValueError(
                f"{option} {path} is in the folder of the data, where it could be read as part of the data; name a "
                f"file outside of {source}"
            )
    if backup is not None:
        checked_backup(backup)
    if report is not None:
        _check_report(report, backup)


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same file, also if the file does not exist yet."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def _check_report(report: Path, backup: Path | None) -> None:
    if backup is not None and is_same_file(report, backup):
        raise ValueError(f"--report and --backup are both {report}; name two different files")
    if BACKUP_NAME.fullmatch(report.name):
        raise ValueError(f"--report is {report}, which is the name of a backup; choose another name, e.g. merge.csv")
    check_writable(report, example="merge.csv")
    if os.path.lexists(report):
        raise FileExistsError(f"the report {report} exists already; remove the file, or name another with --report")


def _label_file(source: Path) -> Path | None:
    """Return the file that holds the labels, None for class folders."""
    if not source.is_dir():
        return source
    try:
        return folder_and_csv(source)[1]
    except FileNotFoundError:
        return None
