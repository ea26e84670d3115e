"""Features that know too much: one alone tells the label, or tells which rows have a label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import UNLABELED, Table

SUSPICIOUS = 0.99  # balanced accuracy of one feature alone
FEWEST_ROWS = 10  # of a class, for it to count: with fewer, some feature of twenty tells them apart by chance
FEW_VALUES = 200  # of a number, for each to have its own guess

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


def leaks(table: Table, y: npt.NDArray[np.int64]) -> list[str]:
    """Notes that begin with "leak?"."""
    is_labeled = y != UNLABELED
    label_target = _Target.of(y, is_labeled)
    labeled_target = _Target.of(is_labeled.astype(np.int64), np.ones_like(is_labeled))
    notes = []
    for name, values, codes in _columns(table):
        share = label_target.told_by(values, codes)
        if share > SUSPICIOUS:
            notes.append(
                f"leak? {name!r} alone tells the label of {share:.1%} of the labelled rows (mean over classes); "
                "ignore this column unless it is known before the label is"
            )
        share = labeled_target.told_by(values, codes)
        if share > SUSPICIOUS:
            notes.append(
                f"leak? {name!r} alone tells for {share:.1%} of the rows whether they have a label; "
                "ignore this column if it was filled in with the label"
            )
    return notes


def _columns(table: Table) -> Iterator[tuple[str, Numbers | None, Codes | None]]:
    """Each column as numbers, whose order counts, as codes, which are equal or not, or as both."""
    for name, values in zip(table.numeric_names, table.numeric.T, strict=True):
        distinct, codes = np.unique(values, return_inverse=True)
        yield name, values, codes if len(distinct) <= FEW_VALUES else None
    for name, codes in zip(table.categorical_names, table.categorical.T, strict=True):
        yield name, None, codes + 1  # missing is a level too


class _Target(NamedTuple):
    rows: npt.NDArray[np.int64]  # those of classes that are frequent enough
    classes: Codes
    num_classes: int

    @classmethod
    def of(cls, target: npt.NDArray[np.int64], is_known: npt.NDArray[np.bool_]) -> _Target:
        frequent = np.bincount(target[is_known]) >= FEWEST_ROWS
        rows = np.flatnonzero(is_known)
        rows = rows[frequent[target[rows]]]
        distinct, classes = np.unique(target[rows], return_inverse=True)
        return cls(rows, classes, len(distinct))

    def told_by(self, values: Numbers | None, codes: Codes | None) -> float:
        """The balanced accuracy of guessing the class from one column alone."""
        if self.num_classes < 2:
            return 0.0
        groupings = [] if codes is None else [codes[self.rows]]
        if values is not None:
            groupings.append(_ranges(values[self.rows], self.classes, self.num_classes))
        return max(_told_by_others(self._counts(groups)) for groups in groupings)

    def _counts(self, groups: Codes) -> Codes:
        """[group, class]"""
        size = (groups.max() + 1) * self.num_classes
        return np.bincount(groups * self.num_classes + self.classes, minlength=size).reshape(-1, self.num_classes)


def _told_by_others(counts: Codes) -> float:
    """Each row's class is guessed from the others of its group, so a value seen once tells nothing."""
    ranked = np.sort(counts, axis=1)
    rival = np.where(counts == ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])
    right = np.where(counts - 1 > rival, counts, 0)
    return float((right.sum(axis=0) / counts.sum(axis=0)).mean())


def _ranges(values: Numbers, classes: Codes, num_ranges: int) -> Codes:
    """The best cuts, missing values on whichever side suits them."""
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_leaf_nodes=num_ranges, class_weight="balanced", random_state=0)
    leaves: Codes = tree.fit(values[:, None], classes).apply(values[:, None])
    return leaves
