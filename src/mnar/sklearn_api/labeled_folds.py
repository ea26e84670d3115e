"""Cross-validation for partly labelled data: only labelled rows are tested, and all unlabelled rows are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import BaseCrossValidator, StratifiedKFold

from mnar.datasets.user_files.label_values import is_missing_value


class LabeledOnlyKFold(BaseCrossValidator):  # type: ignore[misc]
    """A splitter with stratified folds of the labelled rows, e.g. for `cv=` of GridSearchCV.

    Unlabelled rows are in every training set, and in no test set because there is no label to score them with.
    `split_labels` defines which rows are unlabelled.
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
        """Yield the training rows and the test rows of each fold."""
        if y is None:
            raise ValueError("y is None, but the folds consist of labelled rows; give y")
        is_labeled, labels = split_labels(y, self.unlabeled)
        labeled, others = np.flatnonzero(is_labeled), np.flatnonzero(~is_labeled)
        if len(labeled) < self.n_splits:
            raise ValueError(
                f"{len(labeled)} rows have a label, which is too few for {self.n_splits} folds; "
                "label more rows or choose a smaller n_splits"
            )
        folds = StratifiedKFold(self.n_splits, shuffle=self.shuffle, random_state=self.random_state)
        for train, test in folds.split(labeled, labels):
            yield np.sort(np.concatenate([labeled[train], others])), labeled[test]

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        return self.n_splits


def split_labels(y: Any, unlabeled: object = -1) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Return which rows have a label, and the labels of these rows.

    The value `unlabeled`, None, NaN, empty text and "?" mean that a row has no label; see `is_missing_value`. With
    `unlabeled=None` the number -1 is an ordinary class.
    """
    values = np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"y has shape {values.shape}, but it must have one dimension; give one label per row")
    is_labeled = np.array([not is_missing_value(value, unlabeled) for value in values.tolist()], bool)
    labels = values[is_labeled]
    if labels.dtype == object and not all(isinstance(label, str) for label in labels):
        labels = np.array(labels.tolist())  # the labels are numbers; y was an object array because of None
    return is_labeled, labels
