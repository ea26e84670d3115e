"""Store decoded images on disk: an array that can be memory-mapped, and a manifest of the files it was decoded from.

The cache folder contains `<name>-<key>.npy`, with one row per readable file, and the manifest `<name>.json`. The name
is the requested size, such as 64x64 or auto; the name of the decoder stands before it, unless it is the usual decoder.
The key is a hash of the files' contents, the name and the format number. A reader never sees a half-written file.

The manifest has a digest of itself and of every block of the array. Blocks are verified when the array is opened: all
blocks of an array of up to 1 GB, and of a larger array evenly spaced blocks that make up 1 GB. If a block has changed,
the images are decoded again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.atomic_write import (
    PART,
    digest_of,
    from_json,
    remove_leftover,
    sealed,
    unsealed,
    write_atomically,
    writing_atomically,
)
from mnar.datasets.user_files.image_decode import Shape

BLOCK_BYTES, MOST_VERIFIED = 1 << 22, 256  # 4 MB, and blocks that are verified when an array is opened
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


class Manifest(NamedTuple):
    """The files of an array, and what the array was when it was written."""

    files: KnownFiles
    array: str = ""  # the name of the array; empty in a manifest of an earlier version
    blocks: tuple[str, ...] = ()  # the digests of the blocks of the array


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

    def remove_leftovers(self) -> None:
        """Remove the temporary files of a process that was killed. All files in the folder belong to the cache."""
        for left in self.folder.glob(f"*{PART}"):
            remove_leftover(left.with_name(left.name.removesuffix(PART)))

    def read_manifest(self) -> Manifest:
        """Return the manifest, or one without files if it is missing or damaged."""
        try:
            content = unsealed(from_json(self.manifest.read_bytes()))
            if content["format"] == FORMAT:
                files = {path: KnownFile(*values) for path, values in content["files"].items()}
                return Manifest(files, content.get("array", ""), tuple(content.get("blocks", ())))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass  # the caller then reads the image files and writes a new manifest
        return Manifest({})

    def write_manifest(self, files: KnownFiles, x: npt.NDArray[np.uint8]) -> None:
        """Remove the arrays of other files, then write the manifest of the array `x`.

        In this order, a process that is killed half-way leaves the old manifest, and the next start repeats both steps.
        """
        array = self.array_path(files)
        for other in set(self.folder.glob(f"{self.name}-*.npy")) - {array}:
            other.unlink()  # a process that has mapped the array keeps its data
        blocks = [digest_of(x[rows]) for rows in _blocks(x)]
        record = sealed({"format": FORMAT, "files": files, "array": array.name, "blocks": blocks})
        content = json.dumps(record, separators=(",", ":"))
        with _disk_errors_with_remedy(self.manifest, len(content)):
            write_atomically(self.manifest, content)

    def open_array(
        self, files: KnownFiles, shape: Shape, known: Manifest | None = None
    ) -> npt.NDArray[np.uint8] | None:
        """Return the memory-mapped array, or None if it is missing, incomplete, or does not fit these files.

        An array that `known` describes is verified, and the result is None if a block has changed.
        """
        path = self.array_path(files)
        try:
            x: npt.NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError):
            return None
        if x.dtype != np.uint8 or x.shape != (_num_readable(files), *shape):
            return None
        if known is not None and known.array == path.name and not _is_unchanged(x, known.blocks):
            return None
        return x

    def images_by_content(self, known: Manifest, shape: Shape) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the stored images by the hash of their file, so that only files with new content are decoded."""
        x = self.open_array(known.files, shape, known)
        if x is None:
            return {}
        contents = (file.content for file in known.files.values() if not file.problem)
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
        with _disk_errors_with_remedy(path, num_bytes), writing_atomically(path) as file:
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


def short_hash(value: object) -> str:
    """Return 24 hexadecimal digits of the SHA-256 hash of `value` as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _blocks(x: npt.NDArray[np.uint8]) -> list[slice]:
    """The rows of each block of an array."""
    num_rows = max(1, BLOCK_BYTES // max(1, x[:1].nbytes))
    return [slice(start, start + num_rows) for start in range(0, len(x), num_rows)]


def _is_unchanged(x: npt.NDArray[np.uint8], digests: Sequence[str]) -> bool:
    """Whether the blocks of an array have these digests; of an array with many blocks, evenly spaced ones are read."""
    blocks = _blocks(x)
    if len(blocks) != len(digests):
        return False
    step = -(-len(blocks) // MOST_VERIFIED) or 1  # the quotient is rounded up
    return all(digest_of(x[rows]) == digest for rows, digest in list(zip(blocks, digests, strict=True))[::step])


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
