"""Checkpoints: a run can always resume from a complete one, even if it was killed while a checkpoint was written."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from mnar.atomic_write import flush_folder, write_atomically


class DamagedCheckpoint(ValueError):
    """A checkpoint file exists but cannot be read."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint to `path` and keep the previous checkpoint at `previous(path)`."""
    content = io.BytesIO()
    torch.save(state, content)
    temporary = path.with_name(path.name + ".new")
    write_atomically(temporary, content.getbuffer().tobytes())
    if path.exists():
        path.replace(previous(path))
    temporary.replace(path)
    flush_folder(path.parent)


def load(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read the newest complete checkpoint, and list the problems of newer checkpoints that were skipped.

    Raises FileNotFoundError when there is no checkpoint, and DamagedCheckpoint when no checkpoint can be read.
    """
    problems: list[str] = []
    # A crash between the two renames of `save` leaves the newest checkpoint, complete, under its temporary name.
    for candidate in (path, path.with_name(path.name + ".new"), previous(path)):
        if not candidate.exists():
            continue
        try:
            return _read(candidate), problems
        except DamagedCheckpoint as error:
            problems.append(str(error))
    if problems:
        raise DamagedCheckpoint("; ".join(problems) + "; no complete checkpoint is left, so start a new run")
    raise FileNotFoundError(f"no checkpoint at {path}")


def previous(path: Path) -> Path:
    """The file that holds the checkpoint before the one at `path`."""
    return path.with_name(path.stem + ".previous" + path.suffix)


def _read(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not verify the checksums of the archive
            damaged = archive.testzip()
        if damaged:
            raise DamagedCheckpoint(f"{path} is damaged (the checksum of {damaged} does not match)")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (DamagedCheckpoint, PermissionError, MemoryError):
        raise
    except Exception as error:  # torch and zipfile raise many exception types for a damaged file
        raise DamagedCheckpoint(f"{path} is damaged ({error})") from error
    return state
