"""Which image files a folder holds. Nothing outside the folder is ever read: a link that leads out of it is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

KINDS = {  # by Pillow's names; none whose reader starts another program, as that of EPS does
    "PNG": (".png", ".apng"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "PPM": (".pbm", ".pgm", ".pnm", ".ppm"),
}
NOT_READ = (".avif", ".heic", ".heif", ".jp2")  # found all the same, to be told of rather than missed
SUFFIXES = tuple(suffix for suffixes in (*KINDS.values(), NOT_READ) for suffix in suffixes)


def images_under(folder: Path) -> list[str]:
    """Paths within `folder`, at any depth, with forward slashes, sorted.

    Names that begin with a dot are left out. A linked file counts where it leads within the folder; a linked folder
    there is not entered, as its images are found where they are.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; name the folder that holds the images")
    return sorted(_walk(folder, "", folder))


def refuse_way_out(path: Path, folder: Path, where: str = "") -> None:
    """`where` is what names the path, for the error to begin with."""
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise ValueError(
            f"{where}{path} is a link that leads out of {folder}, to {target}; copy what it leads to in its place"
        )


def _walk(at: Path, prefix: str, folder: Path) -> Iterator[str]:
    with os.scandir(at) as entries:
        for entry in entries:
            name = prefix + entry.name
            is_folder = entry.is_dir()
            if entry.name.startswith(".") or not (is_folder or name.lower().endswith(SUFFIXES)):
                continue
            if entry.is_symlink():
                refuse_way_out(folder / name, folder)
            if not is_folder:
                yield name
            elif not entry.is_symlink():
                yield from _walk(Path(entry.path), name + "/", folder)
