"""Read a folder with one sub-folder of images per class, and one sub-folder for the unlabelled images."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from mnar.datasets.user_files.image_cache import load_images
from mnar.datasets.user_files.image_files import FORMATS, images_under
from mnar.datasets.user_files.label_values import encode_labels
from mnar.datasets.user_files.partly_labeled import PartlyLabeled
from mnar.types import OnProgress

UNLABELED_FOLDERS = ("unlabeled", "unlabelled", "unknown")  # in upper or lower case


def read_class_folders(
    folder: Path,
    *,
    unlabeled: Collection[str] = (),
    size: int | tuple[int, int] | None = None,
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Read the images. The classes are in the order of their folders' names; an empty folder is a class without labels.

    `unlabeled` are further folders whose images have no label. `size` and `progress` are those of `load_images`.
    """
    folder = Path(folder)
    paths = images_under(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} holds no images ({', '.join(FORMATS)}); name the folder that does")
    class_of = {path: path.partition("/")[0] for path in paths}
    for path, class_name in class_of.items():
        if class_name == path:
            raise ValueError(
                f"{folder / path} is in no class folder; move it to its class or to {UNLABELED_FOLDERS[0]}/"
            )
    folders = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    class_names = [name for name in folders if not _is_unlabeled(name, unlabeled)]
    if class_names == folders:
        raise ValueError(
            f"{folder} has the class folders {', '.join(folders)} and no {'/, '.join(UNLABELED_FOLDERS)}/: "
            "this is plain supervised learning; put the unlabelled images into a folder with one of these names, or "
            "name their folder with --unlabeled"
        )

    labels = [None if _is_unlabeled(class_of[path], unlabeled) else class_of[path] for path in paths]
    y, known_names, notes = encode_labels(labels, str(folder), class_names)
    images = load_images(paths, root=folder, size=size, progress=progress)
    row_names = [path for path, readable in zip(paths, images.readable, strict=True) if readable]
    return PartlyLabeled(images.x, y[images.readable], known_names, row_names, (*notes, *images.notes))


def _is_unlabeled(name: str, unlabeled: Collection[str]) -> bool:
    """Whether the images in the folder of this name have no label."""
    return name in unlabeled or name.lower() in UNLABELED_FOLDERS
