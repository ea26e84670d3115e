"""Out-of-fold predictions of a quick classifier, the probe.

One model is trained per fold of the labelled rows. A labelled row is predicted by the only model that was not trained
on the row. An unlabelled row is predicted by every model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class OutOfFold(NamedTuple):
    """Predicted probabilities for m labelled and N unlabelled rows."""

    probs_labeled: Floats  # [m, k]: each labelled row predicted by the model that was not trained on it
    fold: Integers  # [m]: the number of that model
    probs_pool: npt.NDArray[np.float32]  # [num_folds, N, k]: every unlabelled row predicted by every model

    @property
    def num_classes(self) -> int:
        return int(self.probs_labeled.shape[1])


def out_of_fold(
    make_model: Callable[[], Any],
    x_labeled: npt.NDArray[Any],
    y: Integers,
    x_pool: npt.NDArray[Any],
    *,
    num_classes: int | None = None,
    num_folds: int = 5,
    seed: int = 0,
) -> OutOfFold:
    """Fit `make_model()`, a scikit-learn classifier, once per fold of the labelled rows.

    `num_classes` includes classes without a label. A model gives probability 0 to a class that is missing in its
    training rows.
    """
    num_labeled = len(y)
    if num_labeled < 2:
        raise ValueError(
            f"{num_labeled} labelled rows are too few for cross-validation, which needs at least 2; label more rows"
        )
    num_classes = int(y.max()) + 1 if num_classes is None else num_classes
    num_folds = min(num_folds, num_labeled)
    fold = stratified_folds(y, num_folds, seed)
    probs_labeled = np.zeros((num_labeled, num_classes))
    probs_pool = np.zeros((num_folds, len(x_pool), num_classes), np.float32)
    for j in range(num_folds):
        seen, held_out = np.flatnonzero(fold != j), np.flatnonzero(fold == j)
        classes = np.unique(y[seen])
        if len(classes) == 1:  # many classifiers raise an error when all rows have the same class
            probs_labeled[held_out, classes] = 1
            probs_pool[j, :, classes] = 1
            continue
        model = make_model().fit(x_labeled[seen], y[seen])
        probs_labeled[np.ix_(held_out, model.classes_)] = model.predict_proba(x_labeled[held_out])
        if len(x_pool):
            probs_pool[j][:, model.classes_] = model.predict_proba(x_pool)
    return OutOfFold(probs_labeled, fold, probs_pool)


def stratified_folds(y: Integers, num_folds: int, seed: int = 0) -> Integers:
    """Assign a fold to each row. The rows, sorted by class, go to the folds in turn.

    So the sizes of two folds differ by at most one row, and so do their numbers of rows of each class.
    """
    shuffled = np.random.default_rng(seed).permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    fold = np.empty(len(y), np.int64)
    fold[by_class] = np.arange(len(y)) % num_folds
    return fold


def gradient_boosting(is_categorical: npt.NDArray[np.bool_] | None = None, seed: int = 0) -> Any:
    """Return an untrained gradient boosting classifier with small trees.

    Without the L2 regularisation, 26 classes with a few labels each end at chance level.
    """
    # imported here because the import takes a second, and most uses of mnar do not need it
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        categorical_features=is_categorical,
        max_iter=40,
        learning_rate=0.2,
        max_leaf_nodes=8,
        min_samples_leaf=3,
        l2_regularization=1.0,
        max_features=0.3,
        early_stopping=False,
        random_state=seed,
    )
