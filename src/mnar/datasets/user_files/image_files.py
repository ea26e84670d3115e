"""Find the image files in a folder. A link that leads out of the folder is an error: no file outside is ever read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

FORMATS = {  # by Pillow's names; without formats such as EPS, whose reader starts another program
    "PNG": (".png", ".apng"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "PPM": (".pbm", ".pgm", ".pnm", ".ppm"),
}
UNSUPPORTED = (".avif", ".heic", ".heif", ".jp2")  # found all the same, so that a note can list them as unreadable
SUFFIXES = tuple(suffix for suffixes in (*FORMATS.values(), UNSUPPORTED) for suffix in suffixes)


def images_under(folder: Path) -> list[str]:
    """Return the sorted paths of all images in `folder` and its sub-folders, relative to it, with forward slashes.

    Names that begin with a dot are left out. A link to a file within the folder counts as an image. A link to a
    sub-folder is not followed, because its images are found in the sub-folder itself.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; name the folder that holds the images")
    return sorted(_walk(folder, "", folder))


def refuse_link_out(path: Path, folder: Path, where: str = "") -> None:
    """Raise an error if `path` is a link that leads out of `folder`. The message begins with `where`."""
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise ValueError(
            f"{where}{path} is a link that leads out of {folder}, to {target}; replace the link by a copy of its target"
        )


def _walk(current: Path, prefix: str, folder: Path) -> Iterator[str]:
    """Yield the images in the sub-folder `current` of `folder`; `prefix` is the relative path of `current`."""
    with os.scandir(current) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.name.startswith("."):
                continue
            is_folder = _is_folder(entry)
            if not is_folder and not name.lower().endswith(SUFFIXES):
                continue
            if entry.is_symlink():
                refuse_link_out(folder / name, folder)
            if not is_folder:
                yield name
            elif not entry.is_symlink():
                yield from _walk(Path(entry.path), name + "/", folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # links that lead to each other, or a target that must not be looked at
        raise ValueError(
            f"{entry.path} is a link that cannot be followed ({error.strerror}); remove the link, or replace it by a "
            "copy of its target"
        ) from error
