"""Files that are complete and unchanged: atomic writes, digests, and a check before long work.

After an atomic write, a reader sees the old file or the new file, never a part of one. A digest that is stored with the
content shows the reader that the content is the one that was written.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor, uint8

PART = ".part"  # the ending of the temporary file beside a file that is being written
DIGEST = "digest"  # the entry of a record that has the digest of all other entries


class Changed(ValueError):
    """The content of a file is not the content that was written."""


def digest_of(value: object) -> str:
    """Return the SHA-256 hash of plain values, tensors and arrays, nested in lists and dicts, as hexadecimal digits.

    The hash covers names, numbers and texts, and the type, the shape and the bytes of every tensor and array. The order
    of the entries of a dict does not matter.
    """
    return hashlib.sha256(json.dumps(value, default=_described, sort_keys=True).encode()).hexdigest()


def _described(value: object) -> object:
    """What stands for a value that JSON cannot store."""
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy()
        return [str(value.dtype).removeprefix("torch."), [*value.shape], hashlib.sha256(content.data).hexdigest()]
    if isinstance(value, np.ndarray):  # the same as for a tensor of equal content
        return [value.dtype.name, [*value.shape], hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()]
    raise TypeError(f"a {type(value).__name__} has no digest; store tensors, numbers, texts, lists and dicts")


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with an entry "digest", which is the digest of all other entries."""
    return {**record, DIGEST: _digest_of_entries(record)}


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that was read, without its digest. Raise `Changed` if the entries are not those that were sealed.

    Earlier versions wrote no digest, so a record without one is returned as it is.
    """
    if DIGEST in record and record[DIGEST] != _digest_of_entries(record):
        raise Changed("its content is not what was written, because the digest does not match")
    return {name: value for name, value in record.items() if name != DIGEST}


def _digest_of_entries(record: Mapping[str, Any]) -> str:
    return digest_of({name: value for name, value in record.items() if name != DIGEST})


def from_json(content: bytes | str) -> Any:
    """Read JSON. A content that is nested too deeply for Python is a ValueError, like every other damage."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from error


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` so that the file is complete at every moment, even after a power cut.

    `writing_atomically` writes a content that is not in memory as a whole.
    """
    with writing_atomically(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` at the end of the `with` block. After an error, `path` is as before.

    The content goes to a temporary file beside `path`, is flushed to the disk, and replaces `path` by a rename. Another
    process that writes the same file waits meanwhile. If a process is killed, the temporary file stays, until
    the file is written again or `remove_leftover` removes it.
    """
    temporary = path.with_name(path.name + PART)
    try:
        with _opened_alone(temporary) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)  # before the file is closed, which lets another process write
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        # the error of a full disk does not name the file
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise
    flush_folder(path.parent)


def _opened_alone(temporary: Path) -> IO[bytes]:
    """Open and lock an empty temporary file. The system releases the lock when the file is closed, even by a kill."""
    while True:
        file = io.open(temporary, "wb", opener=_keeping_content)  # noqa: SIM115, UP020, as tests replace io.open
        with suppress(OSError):  # a disk that knows no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), temporary.stat()):
                if os.fstat(file.fileno()).st_size:
                    file.truncate(0)
                return file
        file.close()  # while this process waited for the lock, the other one has renamed or removed the file


def _keeping_content(path: str, flags: int) -> int:
    """Open a file without emptying it, because another process may be writing it."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def remove_leftover(path: Path) -> None:
    """Remove the temporary file that a killed process has left beside `path`, unless a process is writing it now."""
    temporary = path.with_name(path.name + PART)
    with suppress(OSError), temporary.open("r+b") as file:  # no such file, or another process holds the lock
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


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
