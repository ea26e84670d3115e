"""Folders of images as people bring them: of several sizes, grey and coloured, in nested folders, some damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from mnar.datasets.user_files.image_cache import CACHE_FOLDER, LOCK

NUM_READABLE, NUM_DAMAGED = 20, 3


def write_class_folders(folder: Path) -> Path:
    """Write 20 images, of which four are grey, and three damaged files into class folders, and return the folder."""
    rng = np.random.default_rng(0)
    parents = ("ant", "ant/close/up", "bee", "unlabeled", "unlabeled/2024")
    for number in range(NUM_READABLE):
        parent = folder / parents[number % len(parents)]
        parent.mkdir(parents=True, exist_ok=True)
        shape = (12 + number % 3, 10) if number % 5 == 2 else (12 + number % 3, 10, 3)
        image = Image.fromarray(rng.integers(0, 256, shape, np.uint8))
        image.save(parent / f"{number:02}.{('png', 'jpg', 'bmp')[number % 3]}")
    whole = (folder / "ant" / "00.png").read_bytes()
    (folder / "ant" / "cut.png").write_bytes(whole[:-40])
    (folder / "bee" / "empty.jpg").touch()
    (folder / "unlabeled" / "text.png").write_text("not an image")
    return folder


def write_folder_with_csv(folder: Path) -> Path:
    """Write the same files and labels.csv, which names half of them and one that does not exist."""
    write_class_folders(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(folder)},{('ant', 'bee', '')[row % 3]}" for row, path in enumerate(paths[::2])]
    (folder / "labels.csv").write_text("\n".join(["path,label", *lines, "absent.png,ant"]) + "\n")
    return folder


def write_csv_of_paths(folder: Path) -> Path:
    """Write the same files, and return the CSV file."""
    return write_folder_with_csv(folder) / "labels.csv"


KINDS = {
    "class folders": write_class_folders,
    "a folder with a CSV file": write_folder_with_csv,
    "a CSV file": write_csv_of_paths,
}


def cached_files(folder: Path) -> dict[str, bytes]:
    """The files in the cache of a folder of images and their content."""
    return {path.name: path.read_bytes() for path in (folder / CACHE_FOLDER).iterdir() if path.name != LOCK}
