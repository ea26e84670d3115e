"""Atomic writes: a reader sees the old file or the new file, never a part of one. And a check before long work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` so that the file is complete at every moment, even after a power cut.

    `writing_atomically` writes a content that is not in memory as a whole.
    """
    with writing_atomically(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` at the end of the `with` block. After an error, `path` is as before.

    The content goes to a temporary file beside `path`, is flushed to the disk, and replaces `path` by a rename.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # the error of a full disk does not name the file
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that a rename in the folder survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: Path, *, example: str = "report.html") -> None:
    """Raise an error if no file can be written at `path`, so that a command fails before its work and not after it.

    Missing folders are no error, because the command creates them: the nearest existing folder must be writable.
    `example` is the name of a file for the message.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file to write, e.g. {path / example}")
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(
            f"cannot write {path}, because {folder} is a file and not a folder; choose another path"
        )
    try:
        with tempfile.TemporaryFile(dir=folder):  # only a real file tells: root may write where permissions forbid it
            pass
    except OSError as error:
        reason = error.strerror or error
        raise PermissionError(
            f"cannot write {path}, because no file can be created in {folder} ({reason}); "
            "choose another path, or change the permissions"
        ) from error
