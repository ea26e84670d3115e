"""`mnar cache`: decode all images of the user's data before they are needed, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mnar.bench.launchers import launcher_values
from mnar.datasets.user_files.all_images import image_folder, load_all_images
from mnar.datasets.user_files.class_folders import read_class_folders
from mnar.datasets.user_files.image_cache import MapFiles, in_parallel, is_problem
from mnar.datasets.user_files.image_csv import read_image_csv
from mnar.datasets.user_files.image_decode import Shape
from mnar.datasets.user_files.read_data import kind_and_reader
from mnar.types import OnProgress

if TYPE_CHECKING:
    from mnar.bench.launchers.ray_cluster import RayCluster

FILES_PER_TASK = 64  # a task of small images takes some hundredths of a second, far more than Ray needs to start it

Result = TypeVar("Result")


class FilledCache(NamedTuple):
    """The decoded images."""

    num_images: int
    shape: Shape
    file: Path
    num_bytes: int
    notes: tuple[str, ...]  # on resized, converted and unreadable images


def fill_cache(
    source: Path,
    *,
    size: int | None = None,
    launcher: str = "local",
    launcher_options: Sequence[str] = (),
    progress: OnProgress | None = None,
) -> FilledCache:
    """Decode the image files that are not in the cache yet. The labels are not read.

    size                as for `read_data`; each size has its own cache
    launcher            "local" or "ray"; the files in the cache are the same
    launcher_options    texts NAME=VALUE
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"no data at {source}; check the path")
    kind, read = kind_and_reader(source, (), False)
    if read is not read_class_folders and read is not read_image_csv:
        raise ValueError(
            f"{source} is {kind}, which has no image files to decode; name a folder of images, or a CSV file that "
            "lists images"
        )
    with _where_files_are_read(launcher, launcher_options, source) as map_files:
        images, _ = load_all_images(source, size=size, progress=progress, map_files=map_files)
    num_images, num_channels, height, width = images.x.shape
    return FilledCache(num_images, (num_channels, height, width), images.file, images.file.stat().st_size, images.notes)


@contextmanager
def _where_files_are_read(launcher: str, options: Sequence[str], source: Path) -> Iterator[MapFiles]:
    """Yield the function that reads files: threads of this process, or workers, which are connected and checked."""
    values = launcher_values(launcher, options)
    if values is None:
        yield in_parallel
        return
    from mnar.bench.launchers.ray_cluster import RayCluster
    from mnar.bench.launchers.ray_files import check_shared_files

    cluster = RayCluster(values)
    with cluster.connected():
        # Another version of Pillow may decode a file to other pixels.
        check_shared_files(cluster, [image_folder(source).absolute()], "the images", packages=("pillow",))
        yield _ByWorkers(cluster)


class _ByWorkers:
    """Lets the workers of a Ray cluster read files."""

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster, self.resources = cluster, cluster.resources("cpu")

    def __call__(self, work: Callable[[str], Result], paths: Iterable[str], /) -> Generator[Result, None, None]:
        from mnar.bench.launchers.ray_files import map_in_order

        paths = list(paths)
        mapped = map_in_order(self.cluster, work, paths, resources=self.resources, items_per_task=FILES_PER_TASK)
        with closing(mapped) as results:
            for path, result in zip(paths, results, strict=True):
                # The problem may be that of a worker, e.g. of one that has lost the shared file system. The cache would
                # remember it, so this machine reads the file as well.
                yield work(path) if is_problem(result) else result
