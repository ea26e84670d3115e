"""Store decoded images on disk: an array that can be memory-mapped, and a manifest of the files it was decoded from.

The cache folder contains `<name>-<key>.npy`, with one row per readable file, and the manifest `<name>.json`. The name
is the requested size, such as 64x64 or auto; the name of the decoder stands before it, unless it is the usual decoder.
The key is a hash of the files' contents, the name and the format number. A reader never sees a half-written file.
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
from mnar.datasets.user_files.image_decode import Shape

FORMAT = 1  # increase this number if the same file is decoded to other pixels; older caches are then rebuilt


class KnownFile(NamedTuple):
    """What the manifest remembers about an image file."""

    num_bytes: int
    mtime_ns: int
    content: str = ""  # a hash
    height: int = 0  # 0 if the header cannot be read
    width: int = 0
    grey: bool = False
    problem: str = ""  # why the file cannot be read


KnownFiles = dict[str, KnownFile]  # by path, in the order of the array's rows


class ImageStore:
    """The decoded images of one size and decoder. The caller holds a lock on the folder, so one process uses it."""

    def __init__(self, folder: Path, requested_size: tuple[int, int] | None, decoder: str = "") -> None:
        size = "{}x{}".format(*requested_size) if requested_size else "auto"
        self.folder = folder
        self.name = f"{decoder}-{size}" if decoder else size
        self.manifest = folder / f"{self.name}.json"

    def array_path(self, files: KnownFiles) -> Path:
        """Return the path of the array that belongs to the contents of these files."""
        contents = [file.content for file in files.values()]
        return self.folder / f"{self.name}-{short_hash([FORMAT, self.name, contents])}.npy"

    def read_manifest(self) -> KnownFiles:
        """Return the files that the manifest lists, or no file if the manifest is missing or damaged."""
        try:
            content = json.loads(self.manifest.read_bytes())
            if content["format"] == FORMAT:
                return {path: KnownFile(*values) for path, values in content["files"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass  # the caller then reads the image files and writes a new manifest
        return {}

    def write_manifest(self, files: KnownFiles) -> None:
        """Remove the arrays of other files, then write the manifest.

        In this order, a process that is killed half-way leaves the old manifest, and the next start repeats both steps.
        """
        for other in set(self.folder.glob(f"{self.name}-*.npy")) - {self.array_path(files)}:
            other.unlink()  # a process that has mapped the array keeps its data
        content = json.dumps({"format": FORMAT, "files": files}, separators=(",", ":"))
        with _disk_errors_with_remedy(self.manifest, len(content)):
            write_atomically(self.manifest, content)

    def open_array(self, files: KnownFiles, shape: Shape) -> npt.NDArray[np.uint8] | None:
        """Return the memory-mapped array, or None if it is missing, incomplete, or does not fit these files."""
        try:
            x: npt.NDArray[np.uint8] = np.load(self.array_path(files), mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError):
            return None
        return x if x.dtype == np.uint8 and x.shape == (_num_readable(files), *shape) else None

    def images_by_content(self, files: KnownFiles, shape: Shape) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the stored images by the hash of their file, so that only files with new content are decoded."""
        x = self.open_array(files, shape)
        if x is None:
            return {}
        contents = (file.content for file in files.values() if not file.problem)
        return dict(zip(contents, np.asarray(x), strict=True))

    def write_array(
        self, files: KnownFiles, shape: Shape, images_or_problems: Iterable[npt.NDArray[np.uint8] | str]
    ) -> KnownFiles:
        """Write the images, and return `files` with the problem of each file that could not be decoded.

        `images_or_problems` gives an image or a problem for each file that has no problem yet.
        """
        path, files = self.array_path(files), dict(files)
        candidates = [name for name, file in files.items() if not file.problem]
        num_bytes = len(candidates) * int(np.prod(shape))
        with _disk_errors_with_remedy(path, num_bytes), self._file_that_becomes(path) as file:
            if num_bytes > shutil.disk_usage(self.folder).free:  # an error now is better than after an hour of decoding
                raise OSError("there is no space for it")
            _write_header(file, len(candidates), shape)
            for name, image in zip(candidates, images_or_problems, strict=True):
                if isinstance(image, str):
                    files[name] = files[name]._replace(problem=image)
                else:
                    file.write(image.tobytes())
            file.seek(0)
            _write_header(file, _num_readable(files), shape)  # has the same length: numpy pads the number of rows
        return files

    @contextmanager
    def _file_that_becomes(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a temporary file, which replaces `path` at the end if there was no error."""
        temporary = self.folder / f"{self.name}.npy.part"
        try:
            with temporary.open("wb", buffering=1 << 20) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def short_hash(value: object) -> str:
    """Return 24 hexadecimal digits of the SHA-256 hash of `value` as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _num_readable(files: KnownFiles) -> int:
    return sum(not file.problem for file in files.values())


def _write_header(file: IO[bytes], num_images: int, shape: Shape) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (num_images, *shape)}
    np.lib.format.write_array_header_1_0(file, header)


@contextmanager
def _disk_errors_with_remedy(path: Path, num_bytes: int) -> Iterator[None]:
    """Turn an error of the disk into an error that names the file and its size, and tells what the user can do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"could not write {path}, {num_bytes / 1e6:,.1f} MB ({error.strerror or error}); "
            f"free some space, or replace {path.parent} by a link to a folder on another disk"
        ) from error
