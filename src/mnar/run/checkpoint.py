"""Checkpoints: a run can always resume from a complete one, even if it was killed while a checkpoint was written.

A checkpoint has a digest of everything that is loaded. A file that is damaged, or that was changed, is never used.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from mnar.atomic_write import DIGEST, Changed, flush_folder, remove_leftover, sealed, unsealed, writing_atomically
from mnar.run.file_checks import problem_with
from mnar.run.model_checks import in_one_line

FORMAT, PRESENT_FORMAT = "format", 2  # files of the first format have neither this entry nor a digest
VERSIONS = "module_versions"  # the entry with what torch attaches to state dicts and reads when it loads them
STATE_SHAPE = {
    "steps_done": int,
    "config": str,
    "model": dict,
    "average": dict,
    "optimizer": {"state": dict, "param_groups": [{"params": [int]}]},
    "learner": dict,
    "meters": {"names": [str], "sums": Tensor, "num_steps": Tensor, "pseudo_confusion": Tensor},
    "random": {"cpu": Tensor},
}
NEWER_SUFFIX = ".new"
UNVERIFIED = "has no digest, as in earlier versions of mnar, so it cannot be checked for changes"


class DamagedCheckpoint(ValueError):
    """A checkpoint file exists but cannot be used."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint to `path` and keep the previous checkpoint at `previous(path)`."""
    content = io.BytesIO()
    digest = sealed({**state, FORMAT: PRESENT_FORMAT, VERSIONS: _module_versions(state)})[DIGEST]
    torch.save({**state, FORMAT: PRESENT_FORMAT, DIGEST: digest}, content)
    with writing_atomically(newer(path)) as file:
        file.write(content.getbuffer())
    if path.exists():
        path.replace(previous(path))
    newer(path).replace(path)
    flush_folder(path.parent)


def load(path: Path, use: Callable[[dict[str, Any]], None] = lambda state: None) -> tuple[dict[str, Any], list[str]]:
    """Read the newest checkpoint that can be used, and list what is wrong with it or with newer ones that were skipped.

    use    is called with the state; a checkpoint that it refuses with a ValueError is skipped

    Raises FileNotFoundError when there is no checkpoint, and DamagedCheckpoint when no checkpoint can be used.
    """
    problems: list[str] = []
    # A crash between the two renames of `save` leaves the newest checkpoint, complete, under its temporary name.
    for candidate in (path, newer(path), previous(path)):
        if not candidate.exists():
            continue
        try:
            state, is_verified = _read(candidate)
            use(state)
        except DamagedCheckpoint as error:
            problems.append(str(error))
        except ValueError as error:
            problems.append(f"{candidate} does not fit the run ({in_one_line(error)})")
        else:
            return state, problems if is_verified else [*problems, f"{candidate} {UNVERIFIED}"]
    if problems:
        raise DamagedCheckpoint("; ".join(problems) + "; no complete checkpoint is left, so start a new run")
    raise FileNotFoundError(f"no checkpoint at {path}")


def complete_save(path: Path) -> None:
    """Complete a save that was killed between its two renames, and remove what a killed save has left.

    Only the process that owns the folder may call this function.
    """
    remove_leftover(newer(path))
    if newer(path).exists() and not path.exists():
        newer(path).replace(path)
        flush_folder(path.parent)


def previous(path: Path) -> Path:
    """The file that holds the checkpoint before the one at `path`."""
    return path.with_name(path.stem + ".previous" + path.suffix)


def newer(path: Path) -> Path:
    """The file that holds a checkpoint until it replaces the one at `path`."""
    return path.with_name(path.name + NEWER_SUFFIX)


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """Read a checkpoint, and return whether it has a digest, by which it is known to be unchanged."""
    try:
        _check_archive(path)
        with warnings.catch_warnings(action="ignore"):  # torch's advice to programmers is of no use to a user
            state = torch.load(path, map_location="cpu", weights_only=True)
        if problem := problem_with(state, STATE_SHAPE):
            raise Changed(problem)
        if any(tensor.nbytes > path.stat().st_size for tensor in _tensors(state)):
            raise Changed("a tensor is larger than the file")  # a row that stands for many would fill the memory
        return _unsealed(state), DIGEST in state
    except (PermissionError, MemoryError):
        raise
    except UnpicklingError as error:  # torch's message recommends to read the file without a check
        raise DamagedCheckpoint(
            f"{path} is damaged (it contains other things than tensors and plain values)"
        ) from error
    except Exception as error:  # torch and zipfile raise many exception types for a damaged file
        raise DamagedCheckpoint(f"{path} is damaged ({in_one_line(error)})") from error


def _check_archive(path: Path) -> None:
    """Refuse an archive that torch did not write. torch.load does not verify the checksums of the archive."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise Changed(f"the size of {entry.filename} is wrong")
        if damaged := archive.testzip():
            raise Changed(f"the checksum of {damaged} does not match")


def _unsealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state without its format and its digest, after both were checked."""
    content = {name: value for name, value in state.items() if name not in (FORMAT, DIGEST)}
    if FORMAT not in state and DIGEST not in state:
        return content  # a file of an earlier version
    if state.get(FORMAT) != PRESENT_FORMAT:
        raise Changed(f"its format is {state.get(FORMAT)!r}, and this version of mnar reads {PRESENT_FORMAT}")
    if DIGEST not in state:
        raise Changed("its digest is missing")
    unsealed({**state, VERSIONS: _module_versions(content)})
    return content


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner)


def _module_versions(value: object) -> object:
    """The versions of modules, which torch attaches to a state dict as an attribute."""
    if not isinstance(value, dict):
        return None
    return [getattr(value, "_metadata", None), {name: _module_versions(inner) for name, inner in value.items()}]
