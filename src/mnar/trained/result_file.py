"""Write a file of rows block by block. A stopped command continues where it stopped.

The file appears when it is complete. While the command runs, the rows are in OUT.part. OUT.part.json says which command
writes them, and how many rows and bytes are complete. After a kill, the bytes beyond these are dropped, because a block
may have been cut off.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from mnar.atomic_write import check_writable, flush_folder, from_json, write_atomically
from mnar.datasets.user_files.image_files import images_under
from mnar.datasets.user_files.sample_blocks.shards import Map

SECONDS_BETWEEN_RECORDS = 1.0  # what a kill can cost; recording flushes the disk, which takes some milliseconds
PIECE, MOST_PIECES = 1 << 22, 256  # bytes: the fingerprint covers 1 GB, evenly spread over a larger file


class Complete(NamedTuple):
    """What a part file certainly contains. Bytes after these are dropped when the command continues."""

    num_rows: int = 0  # without a header
    num_bytes: int = 0


class ResultFile:
    """A file that is being written."""

    def __init__(self, file: IO[bytes], state: Path, identity: Mapping[str, Any], complete: Complete) -> None:
        self.file, self.state, self.identity, self.complete = file, state, identity, complete
        self.recorded = -math.inf  # when the rows were last recorded

    @property
    def num_rows(self) -> int:
        """The number of complete rows; the command goes on with the next one."""
        return self.complete.num_rows

    def append(self, content: bytes, num_rows: int) -> None:
        """Append the bytes of some rows, and record now and then that they are complete."""
        self.file.write(content)
        # One assignment, after the write: wherever a signal or a full disk stops this method, rows and bytes agree.
        self.complete = Complete(self.num_rows + num_rows, self.complete.num_bytes + len(content))
        if time.monotonic() > self.recorded + SECONDS_BETWEEN_RECORDS:
            self.record()

    def record(self) -> None:
        """Record that all rows so far are complete."""
        self.file.flush()
        os.fsync(self.file.fileno())
        content = {"identity": self.identity, "rows": self.num_rows, "bytes": self.complete.num_bytes}
        write_atomically(self.state, json.dumps(content))
        self.recorded = time.monotonic()


def csv_lines(rows: Iterable[Sequence[str]]) -> bytes:
    """Return rows as lines of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@contextmanager
def result_file(
    out: Path, beginning: bytes, identity: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[ResultFile]:
    """Open the file to write, or continue it if a command with the same identity was stopped.

    beginning    what the file starts with, e.g. the header line of a CSV file
    identity     what the rows depend on: the command, its options, the model and the data, in types that JSON can store
    overwrite    replace an existing file, and drop what another command left behind
    """
    check_output(out, overwrite=overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    part, state = part_of(out), out.with_name(f"{out.name}.part.json")
    if part.is_symlink():
        raise _in_the_way(part)
    try:
        with part.open("ab") as file:
            _lock(file, part)
            _refuse_other_file(part, state, beginning)
            complete = _complete(state, identity, part, overwrite=overwrite)
            file.truncate(complete.num_bytes)
            result = ResultFile(file, state, identity, complete)
            try:
                if complete.num_bytes == 0:
                    result.append(beginning, 0)
                yield result
                result.record()
            except BaseException as error:
                # A command that refuses its input ends in the same way if it is repeated, so its rows are of no use.
                if result.num_rows == 0 or isinstance(error, ValueError):
                    part.unlink()
                    state.unlink(missing_ok=True)
                else:
                    result.record()  # the command can continue from here
                raise
            part.replace(out)
            state.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # the error of a full disk names no file
            error.filename = str(out)
        raise
    flush_folder(out.parent)


def part_of(out: Path) -> Path:
    """Return the file that has the rows until all of them are complete."""
    return out.with_name(f"{out.name}.part")


def check_output(out: Path, *, overwrite: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse an output that exists, cannot be written, or is an input, before the work and not after it.

    inputs    files and folders that the command reads; no file of them is ever replaced, not even with `overwrite`
    """
    check_writable(out, example="labels.csv")
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_file():
        raise FileExistsError(f"{out} is a link or no ordinary file, which is not replaced; choose another --out")
    for given in inputs:
        if given is None or not given.exists():
            continue
        if out.samefile(given) or (given.is_dir() and out.resolve().is_relative_to(given.resolve())):
            raise FileExistsError(f"{out} belongs to the input {given}, which is not replaced; choose another --out")
    if not overwrite:
        raise FileExistsError(f"{out} exists; choose another --out, or replace the file with --overwrite")


def source_fingerprint(source: Path) -> str:
    """Return a text that changes if the data change.

    A file counts by its size and a checksum. In a folder, CSV files count in the same way, and images by their name,
    size and time of change, because reading all of them would take too long.
    """
    if source.is_dir():
        texts = [f"{name} {_size_and_time(source / name)}" for name in images_under(source)]
        tables = sorted(path for path in source.glob("*.csv") if path.is_file())
        texts += [f"{path.name} {source_fingerprint(path)}" for path in tables]
        return f"{len(texts)} files, {zlib.crc32(chr(10).join(texts).encode()):08x}"
    size, checksum = source.stat().st_size, 0
    step = max(PIECE, -(-size // MOST_PIECES))  # the quotient is rounded up
    with source.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            checksum = zlib.crc32(file.read(PIECE), checksum)
    return f"{size} bytes, {checksum:08x}"


def shards_fingerprint(paths: Sequence[Path], over: Map = map) -> str:
    """Return a text that changes if one of the files changes. `over` calls a function for each file."""
    texts = [f"{path.name} {text}" for path, text in zip(paths, over(source_fingerprint, paths), strict=True)]
    return f"{len(paths)} shards, {zlib.crc32(chr(10).join(texts).encode()):08x}"


def _size_and_time(path: Path) -> str:
    """Return the size of a file and when it was changed; empty if it cannot be read, e.g. a link to a lost file."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _lock(file: IO[bytes], part: Path) -> None:
    problem = f"another process is writing {part}; wait until it ends, or choose another --out"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileExistsError(problem) from error
    # Between opening and locking, the other process may have ended and renamed the file.
    if not part.exists() or os.fstat(file.fileno()).st_ino != part.stat().st_ino:
        raise FileExistsError(problem)


def _refuse_other_file(part: Path, state: Path, beginning: bytes) -> None:
    """Raise an error if the part file was not made by this module."""
    with part.open("rb") as file:
        starts_right = beginning.startswith(file.read(len(beginning) + 1))
    if not (state.exists() or starts_right):
        raise _in_the_way(part)


def _in_the_way(part: Path) -> FileExistsError:
    return FileExistsError(f"{part} is in the way and was not written by this command; rename it")


def _complete(state: Path, identity: Mapping[str, Any], part: Path, *, overwrite: bool) -> Complete:
    """Return what the part file contains of the rows of this command; nothing if it has to start anew."""
    try:
        stored = from_json(state.read_text())
        complete, before = Complete(int(stored["rows"]), int(stored["bytes"])), stored["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return Complete()
    if not isinstance(before, dict) or min(complete) <= 0 or part.stat().st_size < complete.num_bytes:
        return Complete()
    wanted = json.loads(json.dumps(identity))
    if before == wanted:
        return complete
    differing = [name for name in wanted if before.get(name) != wanted[name]]
    if overwrite or "data" in differing:
        return Complete()
    changed = ", ".join(differing) or "another version"
    raise FileExistsError(
        f"{part} was left behind by a stopped command with other settings ({changed}); start anew with --overwrite, or "
        "repeat that command to finish it"
    )
