"""Write a CSV file block by block. A stopped command continues where it stopped; the file appears when it is complete.

While the command runs, the rows are in OUT.part. OUT.part.json says which command writes them, and how many rows and
bytes are complete. After a kill, the bytes beyond these are dropped, because a block may have been cut off.
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
from typing import IO, Any

from mnar.atomic_write import check_writable, flush_folder, write_atomically
from mnar.datasets.user_files.image_files import images_under

SECONDS_BETWEEN_RECORDS = 1.0  # what a kill can cost; recording flushes the disk, which takes some milliseconds
ENDS = 1 << 20  # bytes at both ends of a file that its fingerprint covers


class ResultFile:
    """A CSV file that is being written."""

    def __init__(self, file: IO[bytes], state: Path, identity: Mapping[str, Any], num_rows: int) -> None:
        self.file, self.state, self.identity = file, state, identity
        self.num_rows = num_rows  # complete rows, without the header; the command goes on with the next one
        self.recorded = -math.inf  # when the rows were last recorded

    def write(self, rows: Iterable[Sequence[str]], num_rows: int) -> None:
        """Append rows, and record now and then that they are complete."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.file.write(text.getvalue().encode())
        self.num_rows += num_rows
        if time.monotonic() > self.recorded + SECONDS_BETWEEN_RECORDS:
            self.record()

    def record(self) -> None:
        """Record that all rows so far are complete."""
        self.file.flush()
        os.fsync(self.file.fileno())
        content = {"identity": self.identity, "rows": self.num_rows, "bytes": self.file.tell()}
        write_atomically(self.state, json.dumps(content))
        self.recorded = time.monotonic()


@contextmanager
def result_file(
    out: Path, header: Sequence[str], identity: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[ResultFile]:
    """Open the file to write, or continue it if a command with the same identity was stopped.

    identity     what the rows depend on: the command, its options, the model and the data, in types that JSON can store
    overwrite    replace an existing file, and drop what another command left behind
    """
    check_output(out, overwrite=overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    part, state = out.with_name(f"{out.name}.part"), out.with_name(f"{out.name}.part.json")
    try:
        with part.open("ab") as file:
            _lock(file, part)
            num_rows, num_bytes = _complete(state, identity, part, overwrite=overwrite)
            file.truncate(min(num_bytes, file.tell()))
            file.seek(0, os.SEEK_END)
            result = ResultFile(file, state, identity, num_rows)
            if file.tell() == 0:
                result.num_rows = 0
                result.write([header], 0)
            try:
                yield result
            finally:  # also after an error, so that the command can go on from here
                result.record()
            part.replace(out)
            state.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # the error of a full disk names no file
            error.filename = str(out)
        raise
    flush_folder(out.parent)


def check_output(out: Path, *, overwrite: bool) -> None:
    """Refuse an output that exists or cannot be written, before the work and not after it."""
    if out.exists() and not out.is_dir() and not overwrite:
        raise FileExistsError(f"{out} exists; choose another --out, or replace the file with --overwrite")
    check_writable(out, example="labels.csv")


def source_fingerprint(source: Path) -> str:
    """Return a text that changes if the data change: sizes, names, and checksums of both ends of a file."""
    if source.is_dir():
        sizes = [f"{name} {(source / name).stat().st_size}" for name in images_under(source)]
        return f"{len(sizes)} images, {zlib.crc32(chr(10).join(sizes).encode()):08x}"
    size = source.stat().st_size
    with source.open("rb") as file:
        checksum = zlib.crc32(file.read(ENDS))
        file.seek(max(0, size - ENDS))
        checksum = zlib.crc32(file.read(ENDS), checksum)
    return f"{size} bytes, {checksum:08x}"


def _lock(file: IO[bytes], part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileExistsError(
            f"another process is writing {part}; wait until it ends, or choose another --out"
        ) from error


def _complete(state: Path, identity: Mapping[str, Any], part: Path, *, overwrite: bool) -> tuple[int, int]:
    """Return the number of complete rows and bytes in the part file; 0 if it has to start anew."""
    try:
        stored = json.loads(state.read_text())
        num_rows, num_bytes, before = int(stored["rows"]), int(stored["bytes"]), stored["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
    if before == json.loads(json.dumps(identity)) and part.stat().st_size >= num_bytes:
        return num_rows, num_bytes
    if overwrite or num_rows == 0 or part.stat().st_size < num_bytes:
        return 0, 0
    changed = ", ".join(name for name in identity if before.get(name) != identity[name]) or "another version"
    raise FileExistsError(
        f"{part} was left behind by a stopped command with other settings ({changed}); repeat that command to finish "
        "it, or start anew with --overwrite"
    )
