"""Cross-validation where most rows have no label: folds of those that have one, all others in every training set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import BaseCrossValidator, StratifiedKFold

from mnar.datasets.user_files.label_values import is_missing_value


class LabeledOnlyKFold(BaseCrossValidator):  # type: ignore[misc]
    """For `cv=` of GridSearchCV and the like: stratified folds of the labelled rows.

    Unlabelled rows are in every training set and in no test set: there is nothing to score them by. What counts as
    unlabelled is said in `split_labels`.
    """

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = False,
        random_state: int | np.random.RandomState | None = None,
        unlabeled: object = -1,
    ) -> None:
        self.n_splits, self.shuffle, self.random_state, self.unlabeled = n_splits, shuffle, random_state, unlabeled

    def split(
        self, X: Any, y: Any = None, groups: object = None
    ) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        if y is None:
            raise ValueError("the folds are made of the rows that have a label, and y is None; give y")
        is_labeled, labels = split_labels(y, self.unlabeled)
        labeled, others = np.flatnonzero(is_labeled), np.flatnonzero(~is_labeled)
        if len(labeled) < self.n_splits:
            raise ValueError(
                f"{len(labeled)} rows have a label, too few for {self.n_splits} folds; label more or choose fewer"
            )
        folds = StratifiedKFold(self.n_splits, shuffle=self.shuffle, random_state=self.random_state)
        for train, test in folds.split(labeled, labels):
            yield np.sort(np.concatenate([labeled[train], others])), labeled[test]

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        return self.n_splits


def split_labels(y: Any, unlabeled: object = -1) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which rows have a label, and the labels of those.

    No label are `unlabeled`, None, NaN, empty text and "?"; see `is_missing_value`. With `unlabeled=None` the number -1
    is a class like any other.
    """
    values = np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"y has shape {values.shape}; give one label per row")
    is_labeled = np.array([not is_missing_value(value, unlabeled) for value in values.tolist()], bool)
    labels = values[is_labeled]
    if labels.dtype == object and not all(isinstance(label, str) for label in labels):
        labels = np.array(labels.tolist())  # numbers that stood among None
    return is_labeled, labels
