"""Load all images of the user's data without their labels, through the cache that the readers of labels use as well."""

from __future__ import annotations

from pathlib import Path

from mnar.datasets.user_files.image_cache import Images, MapFiles, in_parallel, load_images
from mnar.datasets.user_files.image_decode import Shape
from mnar.datasets.user_files.sample_blocks.images import open_images
from mnar.datasets.user_files.sample_blocks.names import ANY_IMAGE
from mnar.types import OnProgress


def load_all_images(
    source: Path,
    *,
    size: int | None = None,
    shape: Shape | None = None,
    progress: OnProgress | None = None,
    map_files: MapFiles = in_parallel,
) -> tuple[Images, list[str]]:
    """Return the images of a folder, of a CSV file that lists images, or of one file, and the names of the images.

    The images, and so the files in the cache, are those of `read_data`. The options are those of `load_images`.
    """
    found = open_images(source, ANY_IMAGE)  # decodes no image
    root = image_folder(source)
    paths = [path.relative_to(root).as_posix() for path in found.paths]
    images = load_images(paths, root=root, size=size, shape=shape, progress=progress, map_files=map_files)
    names = [name for name, is_readable in zip(found.names, images.readable, strict=True) if is_readable]
    return images._replace(notes=(*found.notes, *images.notes)), names


def image_folder(source: Path) -> Path:
    """Return the folder that the paths of the images are relative to."""
    return source if source.is_dir() else source.parent
