"""Find features that leak: one column alone gives away the label, or which rows have a label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import UNLABELED, Table

SUSPICIOUS = 0.99  # balanced accuracy of a guess from one column alone
MIN_ROWS = 10  # a class with fewer rows does not count: among twenty features, one separates it by chance
MAX_ROWS = 20_000  # of the labelled rows and of the others; a random sample of so many rows shows a leak as well
MAX_GUESSED_VALUES = 200  # a numeric column with more different values is cut into ranges only

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


def leaks(table: Table, y: npt.NDArray[np.int64]) -> list[str]:
    """Return one note per suspicious column. Each note begins with "leak?"."""
    rows = _sample(y)
    if len(rows) < len(y):
        table, y = table.rows(rows), y[rows]
    is_labeled = y != UNLABELED
    label = _Target.of(y, is_labeled)
    has_label = _Target.of(is_labeled.astype(np.int64), np.ones_like(is_labeled))
    notes = []
    for name, values, codes in _columns(table):
        accuracy = label.accuracy_of_guess(values, codes)
        if accuracy > SUSPICIOUS:
            notes.append(
                f"leak? {name!r} alone tells the label of {accuracy:.1%} of the labelled rows (mean over classes); "
                "ignore this column unless it is known before the label is"
            )
        accuracy = has_label.accuracy_of_guess(values, codes)
        if accuracy > SUSPICIOUS:
            notes.append(
                f"leak? {name!r} alone tells for {accuracy:.1%} of the rows whether they have a label; "
                "ignore this column if it was filled in together with the label"
            )
    return notes


def _sample(y: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Draw at most MAX_ROWS of the labelled rows and as many of the others, always the same ones."""
    rng = np.random.default_rng(0)
    parts = [np.flatnonzero(y != UNLABELED), np.flatnonzero(y == UNLABELED)]
    return np.concatenate([rows if len(rows) <= MAX_ROWS else rng.choice(rows, MAX_ROWS, False) for rows in parts])


def _columns(table: Table) -> Iterator[tuple[str, Numbers | None, Codes | None]]:
    """Yield each column as numbers, whose order counts, as codes, which are equal or not, or as both."""
    for name, values in zip(table.numeric_names, table.numeric.T, strict=True):
        distinct, codes = np.unique(values, return_inverse=True)
        yield name, values, codes if len(distinct) <= MAX_GUESSED_VALUES else None
    for name, codes in zip(table.categorical_names, table.categorical.T, strict=True):
        yield name, None, codes + 1  # "missing" is a level too, with code 0


class _Target(NamedTuple):
    """What is to be guessed from a column: the classes of some rows."""

    rows: npt.NDArray[np.int64]  # the rows of classes that are frequent enough
    classes: Codes
    num_classes: int

    @classmethod
    def of(cls, target: npt.NDArray[np.int64], is_known: npt.NDArray[np.bool_]) -> _Target:
        frequent = np.bincount(target[is_known]) >= MIN_ROWS
        rows = np.flatnonzero(is_known)
        rows = rows[frequent[target[rows]]]
        distinct, classes = np.unique(target[rows], return_inverse=True)
        return cls(rows, classes, len(distinct))

    def accuracy_of_guess(self, values: Numbers | None, codes: Codes | None) -> float:
        """Return the balanced accuracy of guessing the class from one column alone."""
        if self.num_classes < 2:
            return 0.0
        groupings = [] if codes is None else [codes[self.rows]]
        if values is not None:
            groupings.append(_ranges(values[self.rows], self.classes, self.num_classes))
        return max(_leave_one_out_accuracy(self._class_counts(groups)) for groups in groupings)

    def _class_counts(self, groups: Codes) -> Codes:
        """Count the rows of each class in each group: [group, class]."""
        size = (groups.max() + 1) * self.num_classes
        return np.bincount(groups * self.num_classes + self.classes, minlength=size).reshape(-1, self.num_classes)


def _leave_one_out_accuracy(counts: Codes) -> float:
    """Return the balanced accuracy of guessing each row's class from the other rows of its group.

    The row itself does not count, so a value that occurs once gives nothing away.
    """
    ranked = np.sort(counts, axis=1)
    largest_other = np.where(counts == ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])
    correct = np.where(counts - 1 > largest_other, counts, 0)
    return float((correct.sum(axis=0) / counts.sum(axis=0)).mean())


def _ranges(values: Numbers, classes: Codes, num_ranges: int) -> Codes:
    """Cut the values into the ranges that separate the classes best; missing values join the range that suits best."""
    from sklearn.tree import DecisionTreeClassifier

    # The tree reads float32, in which large numbers are infinite. Ranks are as good, because only the order counts.
    ranks = np.unique(values, return_inverse=True)[1].astype(np.float32)
    ranks[np.isnan(values)] = np.nan
    tree = DecisionTreeClassifier(max_leaf_nodes=num_ranges, class_weight="balanced", random_state=0)
    leaves: Codes = tree.fit(ranks[:, None], classes).apply(ranks[:, None])
    return leaves
