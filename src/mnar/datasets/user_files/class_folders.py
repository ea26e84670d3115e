"""Read a folder with one sub-folder of images per class, and one sub-folder for the unlabelled images."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from mnar.datasets.user_files.image_cache import load_images
from mnar.datasets.user_files.image_files import FORMATS, images_under
from mnar.datasets.user_files.label_values import encode_labels
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import PartlyLabeled
from mnar.types import OnProgress

UNLABELED_FOLDERS = ("unlabeled", "unlabelled", "unknown")  # in upper or lower case


def read_class_folders(
    folder: Path,
    *,
    unlabeled: Collection[str] = (),
    size: int | tuple[int, int] | None = None,
    like: ModelInputs | None = None,
    progress: OnProgress | None = None,
) -> PartlyLabeled:
    """Read the images. The classes are in the order of their folders' names; an empty folder is a class without labels.

    `unlabeled` are further folders whose images have no label. `size` and `progress` are those of `load_images`.
    `like` is a trained model, whose classes and image shape the data take; then every image may have a label.
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
    class_names = [name for name in folders if not is_unlabeled_folder(name, unlabeled)]
    if class_names == folders and like is None:
        raise ValueError(
            f"{folder} has the class folders {', '.join(folders)} and no {'/, '.join(UNLABELED_FOLDERS)}/: "
            "this is plain supervised learning; put the unlabelled images into a folder with one of these names, or "
            "name their folder with --unlabeled"
        )

    labels = [None if is_unlabeled_folder(class_of[path], unlabeled) else class_of[path] for path in paths]
    if like is None:
        y, known_names, notes = encode_labels(labels, str(folder), class_names)
    else:
        y, known_names, notes = like.labels(labels, str(folder), paths, unlabeled), like.class_names, []
    shape = None if like is None else like.image_shape
    images = load_images(paths, root=folder, size=size, shape=shape, progress=progress)
    kept = np.flatnonzero(images.readable)
    row_names = [paths[row] for row in kept]
    return PartlyLabeled(images.x, y[kept], known_names, row_names, (*notes, *images.notes), kept + 1)


def is_unlabeled_folder(name: str, unlabeled: Collection[str]) -> bool:
    """Whether the images in the folder of this name have no label."""
    return name in unlabeled or name.lower() in UNLABELED_FOLDERS
