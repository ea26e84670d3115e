"""Find the files of a data set in the data folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Layout(NamedTuple):
    """One way in which the files of a data set can be stored."""

    folder: str  # a folder in the data folder; the user may also name this folder itself as the data folder
    files: tuple[str, ...]  # file names or glob patterns; a layout is complete if each of them matches a file


def locate(dataset: str, root: Path | None, *layouts: Layout, how_to_get: str) -> list[Path]:
    """Return the files of the first complete layout, in the order of the layout.

    `root` is the data folder that the user named, or None for the folder data/. The error message for missing
    files includes `how_to_get`, which tells the user how to get them.
    """
    is_named, root = root is not None, Path("data" if root is None else root)
    missing: list[Path] = []
    for layout in layouts:
        for folder in (root / layout.folder, root):
            found = [_in_order(folder, pattern) for pattern in layout.files]
            if all(found):
                return [path for paths in found for path in paths]
            missing += [folder / pattern for pattern, paths in zip(layout.files, found, strict=True) if not paths]
    expected = " or ".join(f"{layout.folder}/ with {', '.join(layout.files)}" for layout in layouts)
    looked_for = "".join(f"\n  {path}" for path in missing)
    where = f"is not in {root}" if is_named else "was looked for in the folder data, since --data names no other"
    there_is_none = "" if root.exists() else " (there is no such folder)"
    raise FileNotFoundError(
        f"data set {dataset!r} {where}{there_is_none}: the folder must contain {expected}. Name the right folder with "
        f"--data. If you do not have the files, {how_to_get}.\nThese files were not found:{looked_for}"
    )


def _in_order(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match, sorted so that part2 comes before part10."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
