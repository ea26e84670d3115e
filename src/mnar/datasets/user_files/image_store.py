"""Decoded images on disk: an array that can be memory-mapped, and a manifest of the files that it was decoded from.

For each way to ask for a size a folder holds `<size>-<key>.npy`, one row for each readable file, and `<size>.json`. The
key is a hash over the files' contents, the size and the format. Neither is ever seen half-written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.atomic_write import write_atomically

FORMAT = 1  # a new number where the same file would be decoded to other pixels: older caches are then made again

Shape = tuple[int, int, int]  # channels, height, width


class KnownFile(NamedTuple):
    num_bytes: int
    mtime_ns: int
    content: str = ""  # a hash
    height: int = 0  # 0 where the header cannot be read
    width: int = 0
    grey: bool = False
    problem: str = ""  # why it cannot be read


KnownFiles = dict[str, KnownFile]  # by path, in the order of the array's rows


class ImageStore:
    """For one process at a time: the caller holds a lock on the folder."""

    def __init__(self, folder: Path, asked_size: tuple[int, int] | None) -> None:
        self.folder = folder
        self.size = "{}x{}".format(*asked_size) if asked_size else "auto"
        self.manifest = folder / f"{self.size}.json"

    def array(self, files: KnownFiles) -> Path:
        contents = [file.content for file in files.values()]
        return self.folder / f"{self.size}-{short_hash([FORMAT, self.size, contents])}.npy"

    def read_manifest(self) -> KnownFiles:
        try:
            content = json.loads(self.manifest.read_bytes())
            if content["format"] == FORMAT:
                return {path: KnownFile(*values) for path, values in content["files"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass  # not there, cut off, or something else: looking at the files again puts it right
        return {}

    def write_manifest(self, files: KnownFiles) -> None:
        """And remove the arrays of other files, before: if this ends half-way, the next start does it again."""
        for other in set(self.folder.glob(f"{self.size}-*.npy")) - {self.array(files)}:
            other.unlink()  # a process that has mapped it keeps it
        content = json.dumps({"format": FORMAT, "files": files}, separators=(",", ":"))
        with _saying_what_to_do(self.manifest, len(content)):
            write_atomically(self.manifest, content)

    def open_array(self, files: KnownFiles, shape: Shape) -> npt.NDArray[np.uint8] | None:
        """None when it is not there, not whole, or does not fit these files."""
        try:
            x: npt.NDArray[np.uint8] = np.load(self.array(files), mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError):
            return None
        return x if x.dtype == np.uint8 and x.shape == (_num_readable(files), *shape) else None

    def images_by_content(self, files: KnownFiles, shape: Shape) -> dict[str, npt.NDArray[np.uint8]]:
        """What need not be decoded again when some files are new."""
        x = self.open_array(files, shape)
        if x is None:
            return {}
        contents = (file.content for file in files.values() if not file.problem)
        return dict(zip(contents, np.asarray(x), strict=True))

    def write_array(
        self, files: KnownFiles, shape: Shape, images_or_problems: Iterable[npt.NDArray[np.uint8] | str]
    ) -> KnownFiles:
        """Takes an image, or why there is none, for each file without a problem. Returns the files with these noted."""
        path, files = self.array(files), dict(files)
        candidates = [name for name, file in files.items() if not file.problem]
        num_bytes = len(candidates) * int(np.prod(shape))
        with _saying_what_to_do(path, num_bytes), self._written_whole(path) as file:
            if num_bytes > shutil.disk_usage(self.folder).free:  # better now than after an hour
                raise OSError("there is no space for it")
            _write_header(file, len(candidates), shape)
            for name, image in zip(candidates, images_or_problems, strict=True):
                if isinstance(image, str):
                    files[name] = files[name]._replace(problem=image)
                else:
                    file.write(image.tobytes())
            file.seek(0)
            _write_header(file, _num_readable(files), shape)  # of the same length: numpy leaves room for the number
        return files

    @contextmanager
    def _written_whole(self, path: Path) -> Iterator[IO[bytes]]:
        temporary = self.folder / f"{self.size}.npy.part"
        try:
            with temporary.open("wb", buffering=1 << 20) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def short_hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _num_readable(files: KnownFiles) -> int:
    return sum(not file.problem for file in files.values())


def _write_header(file: IO[bytes], num_images: int, shape: Shape) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (num_images, *shape)}
    np.lib.format.write_array_header_1_0(file, header)


@contextmanager
def _saying_what_to_do(path: Path, num_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"could not write {path}, {num_bytes / 1e6:,.1f} MB ({error.strerror or error}); "
            f"free some space, or put a link to a folder on another disk in the place of {path.parent}"
        ) from error
