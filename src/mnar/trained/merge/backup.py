"""Replace a file of the user's data and keep the old one as a backup. An older backup is never overwritten."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from mnar.atomic_write import flush_folder, writing_atomically

BACKUP_NAME = re.compile(r"(.+)\.bak-\d+(\.json)?")  # of `free_backup`; the first group is the name of the data


def free_backup(path: Path, suffix: str = "") -> Path:
    """Return the first of `path`.bak-1, `path`.bak-2, ... that does not exist."""
    candidates = (path.with_name(f"{path.name}.bak-{number}{suffix}") for number in count(1))
    return next(candidate for candidate in candidates if not os.path.lexists(candidate))


def checked_backup(backup: Path) -> Path:
    """Return the path of a backup that the user named, after checking that it can be written."""
    if os.path.lexists(backup):
        raise FileExistsError(f"the backup {backup} exists already; name another file with --backup")
    if not backup.absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder of the backup {backup} does not exist; create it first")
    return backup


@contextmanager
def replacing(path: Path, backup: Path) -> Iterator[IO[bytes]]:
    """Yield a file for the new content of `path`. At the end, the old file becomes `backup` and the new one `path`.

    A process that is killed leaves `path` as it was, or the complete new file. If an error occurs, `path` stays as it
    was and there is no backup.
    """
    path = path.resolve()  # a link stays a link
    with writing_atomically(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())  # before the backup: on a full disk, there is none
        shutil.copymode(path, file.name)
        copy_to_new_file(path, backup)


def copy_to_new_file(path: Path, copy: Path) -> None:
    """Copy a file to a path at which nothing exists yet; the copy is complete or absent."""
    part = copy.with_name(f"{copy.name}.part")
    try:
        shutil.copy2(path, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.link(part, copy)  # unlike a rename, a link does not replace a file that has appeared meanwhile
    except (PermissionError, NotImplementedError):  # a disk without links
        part.rename(copy)
    finally:
        part.unlink(missing_ok=True)
    flush_folder(copy.absolute().parent)
