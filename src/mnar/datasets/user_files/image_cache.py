"""Load image files as one array, and decode each file only once: the array is memory-mapped from a cache on disk.

The cache finds an image again by the content of its file. A file whose length and modification time are the same as
when it was decoded counts as unchanged and is not opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_decode import Shape, Unreadable, decode, quiet_pillow, read_header
from mnar.datasets.user_files.image_store import ImageStore, KnownFile, KnownFiles, short_hash
from mnar.types import OnProgress

CACHE_FOLDER = ".mnar-cache"  # in the folder of the images
LOCK = ".lock"
MAX_KEPT_SIDE, DEFAULT_SIDE = 128, 64
MAX_FILES_IN_NOTE = 5
MAX_PENDING = 256  # images that are decoded ahead of the one that is written; this bounds the memory
UNKNOWN_LENGTH = -1  # no file has this length, so the file is looked at again on the next start

Item = TypeVar("Item")
Result = TypeVar("Result")


class Decoder(NamedTuple):
    """A way to turn an image file into pixels."""

    name: str  # part of the cache key, because another decoder makes other pixels of the same file
    decode: Callable[[Path, Shape], npt.NDArray[np.uint8]]  # raises `Unreadable` for a damaged file
    num_channels: int | None = None  # None: 1 if all images are grey, otherwise 3


class MapFiles(Protocol):
    """Calls a function for each path, and yields the results in the order of the paths.

    The function can be pickled, so that it can be called in another process or on another machine.
    """

    def __call__(self, work: Callable[[str], Result], paths: Iterable[str], /) -> Generator[Result, None, None]: ...


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    """Yield the result of `work` for each item, in order. Threads suffice: Pillow decodes without the GIL."""
    with ThreadPoolExecutor() as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) == MAX_PENDING:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class Images(NamedTuple):
    """The images that could be read."""

    x: npt.NDArray[np.uint8]  # [number of readable images, 1 or 3, height, width], memory-mapped
    readable: npt.NDArray[np.bool_]  # [number of paths]: whether the file has a row in x
    problems: dict[str, str]  # by path: why the file cannot be read
    notes: tuple[str, ...]
    file: Path  # in the cache; contains x


def load_images(
    paths: Sequence[str],
    *,
    root: Path,
    size: int | tuple[int, int] | None = None,
    decoder: Decoder | None = None,
    shape: Shape | None = None,
    progress: OnProgress | None = None,
    map_files: MapFiles = in_parallel,
) -> Images:
    """Load all images that can be read as one array, with notes on resized, converted and unreadable images.

    `paths` are relative to `root`. `size` is a side or (height, width). Without it, images keep their size if all have
    the same one of at most 128 pixels per side; otherwise they become 64×64. They are grey if all are grey, else RGB.
    `decoder` replaces the usual decoder, `image_decode.decode`. `shape` fixes the number
    of channels, the height and the width, for a model that was trained on such images.
    The cache is the folder .mnar-cache in `root`, or a folder in the user's cache folder if `root` cannot be written.
    `progress(done, total)` counts each image twice: when its file is looked at, and when it is decoded.
    `map_files` decides where files are read: by default in threads of this process. Only this process writes the cache.
    """
    if len(set(paths)) < len(paths):
        raise ValueError(f"{Counter(paths).most_common(1)[0][0]} is listed twice; list each image once")
    requested_size = height_and_width(size)
    decoder = decoder or Decoder("", decode)
    if shape is not None:
        num_channels, *requested = shape
        requested_size = height_and_width((requested[0], requested[1]))
        decoder = Decoder(f"channels-{num_channels}", decode, num_channels)
    root = Path(root).absolute()  # links are not resolved, because on another machine they may lead elsewhere
    report = progress or (lambda done, total: None)
    with _locked_cache_folder(root.resolve()) as folder, quiet_pillow():
        store = ImageStore(folder, requested_size, decoder.name)
        store.remove_leftovers()
        before = store.read_manifest()
        files = _look_at_files(paths, root, before.files, report, map_files)
        shape, notes = common_shape(files, requested_size, root)
        shape = (decoder.num_channels or shape[0], *shape[1:])
        x = store.open_array(files, shape, before)
        is_unknown = x is None or not before.array  # a manifest of an earlier version has no digests
        if x is None:
            known_images = store.images_by_content(before, shape)
            decoding = _decode_files(files, shape, decoder, root, known_images, report, map_files)
            with closing(decoding) as images_or_problems:
                files = store.write_array(files, shape, images_or_problems)
            x = store.open_array(files, shape)
        if all(file.problem for file in files.values()):
            raise _none_readable(files, root)
        if x is None:
            raise OSError(f"another program changed {folder} while the images were written; start again")
        if is_unknown or list(files.items()) != list(before.files.items()):
            store.write_manifest(files, x)
    report(2 * len(paths), 2 * len(paths))
    problems = {path: file.problem for path, file in files.items() if file.problem}
    readable = np.array([path not in problems for path in files])
    return Images(x, readable, problems, (*notes, *unreadable_notes(files)), store.array_path(files))


def height_and_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a size that the user requested as (height, width), or None if the user requested no size."""
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"size {height}×{width} has no pixels; give at least 1 pixel per side, e.g. {DEFAULT_SIDE}")
    return height, width


@contextmanager
def _locked_cache_folder(root: Path) -> Iterator[Path]:
    """Open and lock the cache folder: one process fills it, and the next one finds it filled.

    The system releases the lock when the process ends, even if the process is killed.
    """
    # Many data folders share the user's cache folder, so the name says which one: files elsewhere may have equal names.
    folder_of_root = f"{root.name}-{short_hash(str(root))}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnar"
    problems = []
    for folder in (root / CACHE_FOLDER, user_cache / folder_of_root):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("a")
            break
        except OSError as error:
            problems.append(str(error))
    else:
        raise OSError(
            f"there is no folder to store the decoded images in ({'; '.join(problems)}); "
            "set the environment variable XDG_CACHE_HOME to a folder that can be written"
        )
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _look_at_files(
    paths: Sequence[str], root: Path, before: KnownFiles, report: OnProgress, map_files: MapFiles
) -> KnownFiles:
    """Return a record of each file: that of the last manifest if the file is unchanged, otherwise a new one."""
    trusted = {path: before[path] for path in paths if path in before and _is_unchanged(f"{root}/{path}", before[path])}
    others = [path for path in paths if path not in trusted]
    looked_at: KnownFiles = {}
    with closing(map_files(partial(_look_at_file, root), others)) as results:
        for path, file in zip(others, results, strict=True):
            looked_at[path] = file
            report(len(trusted) + len(looked_at), 2 * len(paths))
    return {path: trusted.get(path) or looked_at[path] for path in paths}


def _is_unchanged(path: str, known: KnownFile) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116, creating a Path for each of 50,000 files takes half a second
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (known.num_bytes, known.mtime_ns)


def _look_at_file(root: Path, name: str) -> KnownFile:
    """Return length, time, content hash and header of a file, or the problem if it cannot be read."""
    path = root / name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe could wait for ever
            return KnownFile(UNKNOWN_LENGTH, 0, problem="not a file")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
            known = KnownFile(status.st_size, status.st_mtime_ns, content)
            file.seek(0)
            try:
                return known._replace(**read_header(file)._asdict())
            except Unreadable as problem:
                return known._replace(problem=str(problem))
    except OSError as error:
        return KnownFile(UNKNOWN_LENGTH, 0, problem=error.strerror or str(error))


def common_shape(files: KnownFiles, requested_size: tuple[int, int] | None, root: Path) -> tuple[Shape, list[str]]:
    """Return the shape that all images get, and notes on images that have another shape."""
    # Files that prove damaged when they are decoded count too, so that the shape is the same before and after.
    images = [file for file in files.values() if file.height]
    if not images:
        raise _none_readable(files, root)
    sizes = sorted({(file.height * file.width, file.height, file.width) for file in images})
    (_, *smallest), (_, *largest) = sizes[0], sizes[-1]
    num_grey = sum(file.grey for file in images)
    keeps_size = len(sizes) == 1 and max(largest) <= MAX_KEPT_SIDE
    height, width = requested_size or (largest if keeps_size else (DEFAULT_SIDE, DEFAULT_SIDE))

    notes = []
    if len(sizes) > 1 or largest != [height, width]:
        span = "{}×{}".format(*smallest) + (" to {}×{}".format(*largest) if len(sizes) > 1 else "")
        notes.append(
            f"images of {span} (height × width) became {height}×{width}: each was resized to cover that size, and its "
            "centre was cut out"
        )
    if 0 < num_grey < len(images):
        notes.append(f"{num_grey:,} of {len(images):,} images are grey and became RGB like the others")
    return (1 if num_grey == len(images) else 3, height, width), notes


def _decode_files(
    files: KnownFiles,
    shape: Shape,
    decoder: Decoder,
    root: Path,
    known_images: dict[str, npt.NDArray[np.uint8]],
    report: OnProgress,
    map_files: MapFiles,
) -> Generator[npt.NDArray[np.uint8] | str, None, None]:
    """Yield, for each file that has no problem yet, its image or the reason why it cannot be decoded."""
    paths = [path for path, file in files.items() if not file.problem]
    unknown = [path for path in paths if files[path].content not in known_images]
    with closing(map_files(partial(_image_or_problem, root, decoder.decode, shape), unknown)) as decoded:
        for done, path in enumerate(paths, 1):
            image = known_images.get(files[path].content)
            yield next(decoded) if image is None else image
            report(len(files) + done, 2 * len(files))


def _image_or_problem(
    root: Path, decode: Callable[[Path, Shape], npt.NDArray[np.uint8]], shape: Shape, name: str
) -> npt.NDArray[np.uint8] | str:
    try:
        return decode(root / name, shape)
    except Unreadable as problem:
        return str(problem)


def is_problem(result: object) -> bool:
    """Whether a result of `MapFiles` says that the file cannot be read."""
    return isinstance(result, str) or (isinstance(result, KnownFile) and bool(result.problem))


def unreadable_notes(files: KnownFiles) -> list[str]:
    """Return one note that lists the files that cannot be read, or no note if all can be read."""
    problems = [f"{path} ({file.problem})" for path, file in files.items() if file.problem]
    if not problems:
        return []
    more = f" and {len(problems) - MAX_FILES_IN_NOTE:,} more" if len(problems) > MAX_FILES_IN_NOTE else ""
    listed = ", ".join(problems[:MAX_FILES_IN_NOTE])
    return [f"{len(problems):,} files cannot be read and are left out: {listed}{more}"]


def _none_readable(files: KnownFiles, root: Path) -> ValueError:
    notes = "".join(f": {note}" for note in unreadable_notes(files))
    return ValueError(f"{root} has no image that can be read{notes}; replace the files or name another folder")
