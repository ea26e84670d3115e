"""What all estimators for half-labelled rows do with y: turn it into class numbers, and score labelled rows only."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from mnar.datasets.user_files.partly_labeled import UNLABELED
from mnar.sklearn_api.labeled_folds import split_labels


def class_codes(y: Any, unlabeled: object) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the classes, sorted, and the position of each row's class in them; UNLABELED for a row without a label."""
    is_labeled, labels = split_labels(column_or_1d(y, warn=True), unlabeled)
    check_classification_targets(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        problem = f"every label is of class {classes.tolist()[0]!r}" if len(labels) else "no row has a label"
        raise ValueError(
            f"{problem}, and {(~is_labeled).sum()} of {len(is_labeled)} rows are unlabelled; label rows of at "
            f"least two classes. If {unlabeled!r} is a class, choose another `unlabeled`, such as None"
        )
    codes = np.full(len(is_labeled), UNLABELED, np.int64)
    codes[is_labeled] = numbers
    return classes, codes


def labeled_accuracy(model: Any, x: Any, y: Any, unlabeled: object, sample_weight: Any = None) -> float:
    """Return the accuracy on the rows that have a label; rows without one are left out with a warning."""
    is_labeled, labels = split_labels(column_or_1d(y, warn=True), unlabeled)
    if not len(labels):
        raise ValueError(
            f"none of the {len(is_labeled)} rows in y has a label, so there is nothing to score; give labelled "
            "rows, and use cv=LabeledOnlyKFold() for cross-validation"
        )
    if not is_labeled.all():
        warnings.warn(
            f"{(~is_labeled).sum()} of {len(is_labeled)} rows in y have no label and are not scored; in "
            "cross-validation, use cv=LabeledOnlyKFold(), which keeps such rows for training. With scoring=..., "
            "scikit-learn would count such rows as errors, without a warning",
            stacklevel=3,
        )
    check_consistent_length(x, y, sample_weight)
    weights = None if sample_weight is None else np.asarray(sample_weight)[is_labeled]
    return float(accuracy_score(labels, model.predict(x)[is_labeled], sample_weight=weights))
