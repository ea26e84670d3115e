"""Move files within a folder so that a killed process leaves nothing half-done: a journal lists the moves beforehand.

While the moves take place, the journal is a hidden file in the folder. If it is there at the next start, the moves are
completed. Afterwards the journal becomes the record of the merge, from which the moves can be undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mnar.atomic_write import flush_folder, from_json, write_atomically
from mnar.trained.merge.backup import free_backup

JOURNAL = ".mnar-merge.json"
FORMAT = "mnar merge of class folders"


class Move(NamedTuple):
    """A file's path before and after, relative to the folder, with forward slashes."""

    old: str
    new: str


def move_files(folder: Path, moves: Sequence[Move], record: Path) -> None:
    """Move the files, and leave a record of the moves at `record`."""
    journal = folder / JOURNAL
    content = {"format": FORMAT, "folder": folder.name, "record": str(record.absolute()), "moves": moves}
    write_atomically(journal, json.dumps(content, indent=1) + "\n")
    complete_moves(folder)


def complete_moves(folder: Path) -> Path | None:
    """Do the moves of a journal that are not done yet; return the record, or None if there is no journal."""
    journal = folder / JOURNAL
    if not journal.is_file():
        return None
    moves, record = _read(journal)
    for move in moves:
        old, new = folder / move.old, folder / move.new
        if os.path.lexists(old) and not os.path.lexists(new):
            try:
                new.parent.mkdir(parents=True, exist_ok=True)
                old.rename(new)
                flush_folder(new.parent)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the path
                reason = getattr(error, "strerror", None) or error
                raise ValueError(
                    f"a merge into {folder} is incomplete, because {move.old!r} cannot be moved to {move.new!r} "
                    f"({reason}). Remove the obstacle, or correct or remove this move in {journal}; then repeat the "
                    f"command. To keep all images where they are now, delete {journal}"
                ) from error
        elif not os.path.lexists(new):
            raise FileNotFoundError(
                f"an earlier merge into {folder} was interrupted, and {old} has disappeared since; restore the file, "
                f"or remove its move from {journal}, then repeat the command"
            )
        elif os.path.lexists(old):
            raise FileExistsError(
                f"an earlier merge into {folder} was interrupted, and {new} has appeared since; remove or rename one "
                f"of {old} and {new}, or remove the move from {journal}, then repeat the command"
            )
    content = journal.read_bytes()
    is_taken = os.path.lexists(record) and not (record.is_file() and record.read_bytes() == content)
    if is_taken or not record.parent.is_dir():  # since the merge began
        record = free_backup(folder, ".json")
    write_atomically(record, content)
    journal.unlink()
    flush_folder(folder)
    return record


def former_names(records: Sequence[Path]) -> dict[str, str]:
    """Return where files that earlier merges have moved are now, by each of their former paths."""
    now: dict[str, str] = {}
    for path in records:
        for move in _read(path)[0]:
            now = {name: move.new if present == move.old else present for name, present in now.items()}
            now.pop(move.new, None)  # the file may be back at a former path
            now[move.old] = move.new
    return now


def reversed_moves(record: Path) -> list[Move]:
    """Return the moves that undo those of a record."""
    return [Move(move.new, move.old) for move in reversed(_read(record)[0])]


def is_record(path: Path) -> bool:
    """Whether the file is a record of moves."""
    try:
        _read(path)
    except ValueError:
        return False
    return True


def _read(path: Path) -> tuple[list[Move], Path]:
    """Return the moves of a journal or record, and the path of the record."""
    try:
        content = from_json(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError("it has another format")
        moves = [Move(str(old), str(new)) for old, new in content["moves"]]
        record = Path(content["record"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no record of moved files ({error}); remove it, or name another record") from error
    for move in moves:
        for name in move:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{path}: {name!r} leads out of the folder; correct the record")
    return moves, record
