"""A run folder has at most one writer: the process that holds its lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mnar.run.file_names import LOCK
from mnar.run.leftovers import remove_leftovers


class InUse(FileExistsError):
    """Another process is writing to the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, and remove the temporary files that the last owner may have left.

    The operating system releases the lock when the process ends, even after kill -9.
    """
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            process = file.read().strip() or "?"
            raise InUse(
                f"{folder} is in use by process {process}; wait until that process ends, or choose another --out"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        remove_leftovers(folder)
        yield
