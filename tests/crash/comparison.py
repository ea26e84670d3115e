"""Whether two folders have the same files with the same bytes, except for times and process numbers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mnar.atomic_write import DIGEST

TIMES = {"seconds", "sessions"}  # entries of JSON files and arrays of .npz files that are not the same in every run
NOT_COMPARED = {".lock"}  # contains the number of a process


def differences(folder: Path, right: Path) -> list[str]:
    """Return what is different in `folder`, in words."""
    found, expected = ({str(path.relative_to(top)) for path in _files(top)} for top in (folder, right))
    lines = [f"{name} is left behind" for name in sorted(found - expected)]
    lines += [f"{name} is missing" for name in sorted(expected - found)]
    lines += [f"{name} differs" for name in sorted(found & expected) if not _is_same(folder / name, right / name)]
    return lines


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_COMPARED)


def _is_same(path: Path, right: Path) -> bool:
    one, other = path.read_bytes(), right.read_bytes()
    if one == other:
        return True
    if path.suffix == ".json":
        return bool(_without_times(json.loads(one)) == _without_times(json.loads(other)))
    if path.suffix == ".npz":
        return _arrays(one) == _arrays(other)
    return False


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(inner) for name, inner in value.items() if name not in TIMES}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value


def _arrays(content: bytes) -> dict[str, bytes]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        not_compared = TIMES | {DIGEST} if TIMES & {*arrays} else TIMES  # a digest of a time is not the same either
        return {name: arrays[name].tobytes() for name in arrays if name not in not_compared}
