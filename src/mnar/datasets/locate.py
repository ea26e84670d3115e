"""Where the files of a data set are looked for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Layout(NamedTuple):
    folder: str  # under the data folder, which may also be this folder itself
    files: tuple[str, ...]  # names or glob patterns; each must be there


def locate(dataset: str, root: Path | None, *layouts: Layout, built_by: str) -> list[Path]:
    """The files of the first layout that is complete, in its order; `built_by` says how to come by them."""
    named, root = root is not None, Path("data" if root is None else root)
    missing: list[Path] = []
    for layout in layouts:
        for folder in (root / layout.folder, root):
            found = [_in_order(folder, pattern) for pattern in layout.files]
            if all(found):
                return [path for paths in found for path in paths]
            missing += [folder / pattern for pattern, paths in zip(layout.files, found, strict=True) if not paths]
    expected = " or ".join(f"{layout.folder}/ with {', '.join(layout.files)}" for layout in layouts)
    looked_for = "".join(f"\n  {path}" for path in missing)
    where = f"is not in {root}" if named else "was looked for in the folder data, since --data names no other"
    there_is_none = "" if root.exists() else " (there is no such folder)"
    raise FileNotFoundError(
        f"data set {dataset!r} {where}{there_is_none}: expected {expected}. "
        f"Name the folder that has it with --data; to build it, {built_by}.\nLooked for and did not find:{looked_for}"
    )


def _in_order(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))  # part2 before part10
