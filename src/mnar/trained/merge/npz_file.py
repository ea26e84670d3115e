"""Labels in the array y of an .npz file. All other arrays are copied as they are."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.npz_file import read_npz
from mnar.datasets.user_files.arrays import CLASSES, LABELS, label_texts, one_of
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.label_values import WHOLE_NUMBER
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.trained.merge.backup import checked_backup, free_backup, replacing
from mnar.trained.merge.samples import LabeledSamples, plain_labels


class NpzFile:
    """A `LabelStore` for an .npz file."""

    def __init__(self, path: Path, *, unlabeled: Collection[str] = (), id: str | None = None) -> None:
        self.path = path
        arrays = read_npz(path)
        y_name, self.classes_name = one_of(LABELS, arrays, path), one_of(CLASSES, arrays, path)
        if y_name is None:
            raise ValueError(f"{path} has no array y, only {', '.join(sorted(arrays))}; add y with -1 for no label")
        if id is not None and id not in arrays:
            raise ValueError(f"{path} has no array {id!r} of ids, only {', '.join(sorted(arrays))}; name one of these")
        self.y_name, self.y = y_name, arrays[y_name]
        self.classes = None if self.classes_name is None else np.atleast_1d(arrays[self.classes_name])
        names = None if self.classes is None else [str(name) for name in self.classes.tolist()]
        texts = label_texts(self.y, f"{path}: {y_name}", names, unlabeled)
        labels, class_names = plain_labels(texts, names, unlabeled)
        rows = range(1, len(self.y) + 1)
        self.samples = LabeledSamples(
            where=str(path),
            row_numbers=rows,
            names=RowNames("row", rows),
            labels=labels,
            class_names=class_names,
            ids=None if id is None else identifiers([str(value) for value in arrays[id].tolist()], str(path))[0],
            unlabeled=unlabeled,
        )

    def check(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> None:
        self._new_arrays(changes, new_classes)

    def write(self, changes: Mapping[int, str], new_classes: Sequence[str], backup: Path | None) -> list[Path]:
        kept = free_backup(self.path) if backup is None else checked_backup(backup)
        new_arrays = self._new_arrays(changes, new_classes)
        with replacing(self.path, kept) as file:
            _write_npz(self.path, file, new_arrays)
        return [kept]

    def _new_arrays(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that change, by name."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        names = [*self.samples.class_names, *new_classes]
        if self.classes is not None and new_classes:
            assert self.classes_name is not None
            arrays[self.classes_name] = np.append(self.classes.astype(str), [*new_classes])
        number_of = {name: number for number, name in enumerate(names)} if self.classes is not None else None
        places, labels = [*changes], [*changes.values()]
        if self.y.dtype.kind in "iuf":
            values = [self._number(label, number_of) for label in labels]
            if values and self.y.dtype.kind in "iu" and max(values) > np.iinfo(self.y.dtype).max:
                raise ValueError(
                    f"{self.path}: {self.y_name} has type {self.y.dtype}, which has no number {max(values)}; save "
                    f"{self.y_name} as int64"
                )
            y = self.y.copy()
            y[places] = np.array(values).astype(self.y.dtype)
        elif self.y.dtype.kind == "U":
            longest = max(map(len, labels), default=1)
            y = self.y.astype(f"U{max(longest, self.y.dtype.itemsize // 4)}")
            y[places] = labels
        else:
            raise ValueError(
                f"{self.path}: {self.y_name} has type {self.y.dtype}, into which no label can be written; save it as "
                "texts, or as whole numbers with -1 for no label"
            )
        arrays[self.y_name] = y
        return arrays

    def _number(self, label: str, number_of: Mapping[str, int] | None) -> int:
        """Return the number that stands for a label in y."""
        if number_of is not None:
            return number_of[label]
        whole = WHOLE_NUMBER.fullmatch(label)
        if whole is None:
            raise ValueError(
                f"{self.path}: {self.y_name} holds numbers, but the annotations have the class {label!r}; save "
                f"{self.y_name} as texts, or add an array classes with the names of the classes"
            )
        return int(whole.group(1))


def _write_npz(source: Path, file: IO[bytes], new_arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Copy the members of an .npz file, each compressed as before, with the contents of some arrays replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(file, "w", allowZip64=True) as new:
        for member in old.infolist():
            copied = zipfile.ZipInfo(member.filename, member.date_time)
            copied.compress_type, copied.external_attr = member.compress_type, member.external_attr
            replaced = new_arrays.get(member.filename.removesuffix(".npy"))
            with new.open(copied, "w", force_zip64=True) as target:
                if replaced is not None:
                    np.lib.format.write_array(target, replaced, allow_pickle=False)
                else:
                    with old.open(member) as content:
                        shutil.copyfileobj(content, target, 1 << 20)
