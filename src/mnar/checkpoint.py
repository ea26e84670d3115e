"""Atomic writes, and checkpoints that survive whatever happens while they are written."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import torch


class DamagedCheckpoint(ValueError):
    """A checkpoint that cannot be read back."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """The file at `path` is the old one or the new one, whole, at every moment."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # a full disk does not say what it was full for
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the one before it stays at `previous(path)`."""
    content = io.BytesIO()
    torch.save(state, content)
    temporary = path.with_name(path.name + ".new")
    write_atomically(temporary, content.getbuffer().tobytes())
    if path.exists():
        path.replace(previous(path))
    temporary.replace(path)
    _flush_folder(path.parent)


def load(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read the newest whole checkpoint: the one at `path`, or the one before it. Also what was wrong with newer ones.

    Raises FileNotFoundError when there is none, DamagedCheckpoint when none can be read.
    """
    problems: list[str] = []
    # A crash between the two renames of `save` leaves the newest one, whole, under its temporary name.
    for candidate in (path, path.with_name(path.name + ".new"), previous(path)):
        if not candidate.exists():
            continue
        try:
            return _read(candidate), problems
        except DamagedCheckpoint as error:
            problems.append(str(error))
    if problems:
        raise DamagedCheckpoint("; ".join(problems) + "; no whole checkpoint is left, begin a new run")
    raise FileNotFoundError(f"no checkpoint at {path}")


def previous(path: Path) -> Path:
    return path.with_name(path.stem + ".previous" + path.suffix)


def _read(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:  # checks what torch.load does not: the sums of the contents
            damaged = archive.testzip()
        if damaged:
            raise DamagedCheckpoint(f"{path} is damaged ({damaged} does not match its sum)")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (DamagedCheckpoint, PermissionError, MemoryError):
        raise
    except Exception as error:  # torch and zipfile raise many kinds for a damaged file; all mean the same here
        raise DamagedCheckpoint(f"{path} is damaged ({error})") from error
    return state


def _flush_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
