"""Labels of images as the names of their folders: a label moves the file into the folder of its class."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mnar.datasets.user_files.class_folders import is_unlabeled_folder
from mnar.datasets.user_files.image_files import images_under
from mnar.trained.merge.backup import checked_backup, free_backup
from mnar.trained.merge.moves import Move, former_names, is_record, move_files
from mnar.trained.merge.samples import LabeledSamples

MOST_BYTES = 200  # in the name of a new folder; file systems allow 255


class ClassFolders:
    """A `LabelStore` for a folder with one sub-folder per class."""

    def __init__(self, folder: Path, *, unlabeled: Collection[str] = ()) -> None:
        self.folder = folder.resolve()
        self.unlabeled = unlabeled
        paths = images_under(self.folder)
        for path in paths:
            if "/" not in path:
                raise ValueError(f"{folder / path} is in no class folder; move it to its class or to unlabeled/")
        folders = sorted(
            entry.name for entry in self.folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
        labels = [path.partition("/")[0] for path in paths]
        self.samples = LabeledSamples(
            where=str(folder),
            row_numbers=range(1, len(paths) + 1),
            names=paths,
            labels=["" if is_unlabeled_folder(name, unlabeled) else name for name in labels],
            class_names=tuple(name for name in folders if not is_unlabeled_folder(name, unlabeled)),
            names_identify=True,
            former_names=former_names(self._records()),
            unlabeled=unlabeled,
        )

    def check(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> None:
        for name in new_classes:
            reason = self._unfit(name)
            if reason:
                raise ValueError(
                    f"the class {name!r} cannot be the name of a class folder, because {reason}. Nothing was changed. "
                    "Give the class another name in the annotations"
                )
        for place in changes:
            path = self.folder / self.samples.names[place]
            if path.is_symlink():  # a relative link would point nowhere after the move
                raise ValueError(f"{path} is a link and cannot be moved to its class; replace it by a copy of the file")
        for move in self._moves(changes):
            try:
                os.lstat(self.folder / move.new)
            except FileNotFoundError:
                continue  # the place is free
            except OSError as error:  # e.g. the path is too long, or a file has the name of a folder
                raise ValueError(
                    f"{self.folder / move.old} cannot be moved to {move.new} ({error.strerror}). Nothing was changed. "
                    "Rename the file or the class"
                ) from error

    def _unfit(self, name: str) -> str:
        """Return why a class cannot have a folder of its name, "" if it can."""
        if name.startswith("."):
            return "it begins with a point"
        if any(mark in name for mark in ("/", "\\", "\0")) or not name.isprintable():
            return "it contains a separator of paths or a character that cannot be printed"
        if len(name.encode()) > MOST_BYTES:
            return f"it is longer than {MOST_BYTES} bytes"
        if is_unlabeled_folder(name, self.unlabeled):
            return "a folder of this name holds images without a label"
        path = self.folder / name
        return "there is a file of this name" if os.path.lexists(path) and not path.is_dir() else ""

    def write(self, changes: Mapping[int, str], new_classes: Sequence[str], backup: Path | None) -> list[Path]:
        record = free_backup(self.folder, ".json") if backup is None else checked_backup(backup)
        move_files(self.folder, self._moves(changes), record)
        return [record]

    def _moves(self, changes: Mapping[int, str]) -> list[Move]:
        """Return where each file goes. A name that is taken in the class folder gets a number."""
        moves: list[Move] = []
        taken: set[str] = set()
        for place, label in changes.items():
            old = self.samples.names[place]
            new = f"{label}/{old.partition('/')[2]}"
            stem, dot, suffix = new.rpartition(".")
            number = 1
            while new in taken or os.path.lexists(self.folder / new):
                number += 1
                new = f"{stem}-{number}{dot}{suffix}"
            taken.add(new)
            moves.append(Move(old, new))
        return moves

    def _records(self) -> list[Path]:
        """Return the records of earlier merges, in their order."""
        found = self.folder.parent.glob(f"{self.folder.name}.bak-*.json")
        records = {number: path for path in found if (number := path.suffixes[-2].removeprefix(".bak-")).isdigit()}
        return [records[number] for number in sorted(records, key=int) if is_record(records[number])]
