"""Images decoded once, into one memory-mapped array on disk that is found again by their content.

A file with the same length and time of change as when it was decoded is trusted to be the same, and is not opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_decode import Unreadable, decode, quiet_pillow, read_header
from mnar.datasets.user_files.image_store import ImageStore, KnownFile, KnownFiles, Shape, short_hash
from mnar.types import OnProgress

BESIDE_THE_DATA = ".mnar-cache"
LOCK = ".lock"
LARGEST_KEPT_SIDE, DEFAULT_SIDE = 128, 64
MOST_NAMED = 5
MOST_UNDERWAY = 256  # images decoded ahead of the one that is written; bounds the memory
READ_AGAIN = -1  # no file has so many bytes

Item = TypeVar("Item")
Result = TypeVar("Result")


class Images(NamedTuple):
    x: npt.NDArray[np.uint8]  # [number of readable images, 1 or 3, h, w], memory-mapped
    readable: npt.NDArray[np.bool_]  # [n]: which of the paths have a row in x
    notes: tuple[str, ...]


def load_images(
    paths: Sequence[str],
    *,
    root: Path,
    size: int | tuple[int, int] | None = None,
    progress: OnProgress | None = None,
) -> Images:
    """All images that can be read, of one size and kind, and notes on what was done to them and what was left out.

    `paths` are relative to `root`. `size` is a side or (height, width); without it, images keep their size where all
    have the same, at most 128 a side, and become 64×64 otherwise. They are grey where all are, else RGB. They are
    kept in .mnar-cache in `root`, or in the user's cache folder where that cannot be written.
    `progress(done, total)` counts each image twice: when its file is looked at, and when it is decoded.
    """
    if len(set(paths)) < len(paths):
        raise ValueError(f"{Counter(paths).most_common(1)[0][0]} is asked for twice; name each image once")
    asked = height_and_width(size)
    root = Path(root).resolve()
    report = progress or (lambda done, total: None)
    with _locked_cache_folder(root) as folder, quiet_pillow():
        store = ImageStore(folder, asked)
        before = store.read_manifest()
        files = _look_at(paths, root, before, report)
        shape, notes = common_shape(files, asked, root)
        if store.open_array(files, shape) is None:
            known_images = store.images_by_content(before, shape)
            files = store.write_array(files, shape, _decoded(files, shape, root, known_images, report))
        if all(file.problem for file in files.values()):
            raise _none_readable(files, root)
        if list(files.items()) != list(before.items()):
            store.write_manifest(files)
        x = store.open_array(files, shape)
    if x is None:
        raise OSError(f"{folder} was changed while it was written; start again")
    report(2 * len(paths), 2 * len(paths))
    readable = np.array([not file.problem for file in files.values()])
    return Images(x, readable, (*notes, *left_out(files)))


def height_and_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"size {height}×{width} has no pixels; give 1 or more a side, such as {DEFAULT_SIDE}")
    return height, width


@contextmanager
def _locked_cache_folder(root: Path) -> Iterator[Path]:
    """One process at a time fills it, and the next one finds it filled. The lock goes with the process."""
    # Data of the same names elsewhere must not be taken for these, so a shared folder has one for each root.
    own_name = f"{root.name}-{short_hash(str(root))}"
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnar"
    problems = []
    for folder in (root / BESIDE_THE_DATA, users / own_name):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK).open("a")
            break
        except OSError as error:
            problems.append(str(error))
    else:
        raise OSError(
            f"nowhere to keep the decoded images ({'; '.join(problems)}); "
            "name a folder that can be written in the environment variable XDG_CACHE_HOME"
        )
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _look_at(paths: Sequence[str], root: Path, before: KnownFiles, report: OnProgress) -> KnownFiles:
    trusted = {path: before[path] for path in paths if path in before and _is_unchanged(f"{root}/{path}", before[path])}
    others = [path for path in paths if path not in trusted]
    looked_at: KnownFiles = {}
    for path, file in zip(others, in_parallel(lambda path: _look(root / path), others), strict=True):
        looked_at[path] = file
        report(len(trusted) + len(looked_at), 2 * len(paths))
    return {path: trusted.get(path) or looked_at[path] for path in paths}


def _is_unchanged(path: str, known: KnownFile) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116, a Path for each of 50,000 files takes half a second
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (known.num_bytes, known.mtime_ns)


def _look(path: Path) -> KnownFile:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # to open a pipe would be to wait for ever
            return KnownFile(READ_AGAIN, 0, problem="not a file")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
            known = KnownFile(status.st_size, status.st_mtime_ns, content)
            file.seek(0)
            try:
                return known._replace(**read_header(file)._asdict())
            except Unreadable as problem:
                return known._replace(problem=str(problem))
    except OSError as error:
        return KnownFile(READ_AGAIN, 0, problem=error.strerror or str(error))


def common_shape(files: KnownFiles, asked: tuple[int, int] | None, root: Path) -> tuple[Shape, list[str]]:
    # Files that prove damaged when they are decoded count too, so that the size is the same before and after.
    images = [file for file in files.values() if file.height]
    if not images:
        raise _none_readable(files, root)
    sizes = sorted({(file.height * file.width, file.height, file.width) for file in images})
    (_, *smallest), (_, *largest) = sizes[0], sizes[-1]
    num_grey = sum(file.grey for file in images)
    keeps_size = len(sizes) == 1 and max(largest) <= LARGEST_KEPT_SIDE
    height, width = asked or (largest if keeps_size else (DEFAULT_SIDE, DEFAULT_SIDE))

    notes = []
    if len(sizes) > 1 or largest != [height, width]:
        span = "{}×{}".format(*smallest) + (" to {}×{}".format(*largest) if len(sizes) > 1 else "")
        notes.append(
            f"images of {span} (height × width) became {height}×{width}: resized to cover it, then the centre cut out"
        )
    if 0 < num_grey < len(images):
        notes.append(f"{num_grey:,} of {len(images):,} images are grey and became RGB like the others")
    return (1 if num_grey == len(images) else 3, height, width), notes


def _decoded(
    files: KnownFiles, shape: Shape, root: Path, known_images: dict[str, npt.NDArray[np.uint8]], report: OnProgress
) -> Iterator[npt.NDArray[np.uint8] | str]:
    """Of each file that has no problem yet: its image, or why it cannot be decoded."""

    def image_or_problem(path: str) -> npt.NDArray[np.uint8] | str:
        image = known_images.get(files[path].content)
        if image is not None:
            return image
        try:
            return decode(root / path, grey=shape[0] == 1, size=shape[1:])
        except Unreadable as problem:
            return str(problem)

    paths = [path for path, file in files.items() if not file.problem]
    for done, result in enumerate(in_parallel(image_or_problem, paths), 1):
        yield result
        report(len(files) + done, 2 * len(files))


def left_out(files: KnownFiles) -> list[str]:
    problems = [f"{path} ({file.problem})" for path, file in files.items() if file.problem]
    if not problems:
        return []
    more = f" and {len(problems) - MOST_NAMED:,} more" if len(problems) > MOST_NAMED else ""
    return [f"{len(problems):,} files cannot be read and are left out: {', '.join(problems[:MOST_NAMED])}{more}"]


def _none_readable(files: KnownFiles, root: Path) -> ValueError:
    return ValueError(f"{root} has no image that can be read; {''.join(left_out(files)) or 'name one or more'}")


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in order. Threads, because Pillow decodes outside the interpreter lock."""
    with ThreadPoolExecutor() as pool:
        underway: deque[Future[Result]] = deque()
        for item in items:
            underway.append(pool.submit(work, item))
            if len(underway) == MOST_UNDERWAY:
                yield underway.popleft().result()
        while underway:
            yield underway.popleft().result()
