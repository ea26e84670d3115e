"""What a quick classifier predicts for rows it has not seen: labelled ones out of fold, unlabelled ones by all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class OutOfFold(NamedTuple):
    probs_labeled: Floats  # [m, k]: each labelled row predicted by the model that has not seen it
    fold: Integers  # [m]: which model that is
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

    `num_classes` counts also those that nobody has labelled. A class that a model has not seen has probability 0 there.
    """
    num_labeled = len(y)
    if num_labeled < 2:
        raise ValueError(
            f"{num_labeled} labelled rows are too few to predict each by a model that has not seen it; label more"
        )
    num_classes = int(y.max()) + 1 if num_classes is None else num_classes
    num_folds = min(num_folds, num_labeled)
    fold = stratified_folds(y, num_folds, seed)
    probs_labeled = np.zeros((num_labeled, num_classes))
    probs_pool = np.zeros((num_folds, len(x_pool), num_classes), np.float32)
    for j in range(num_folds):
        seen, held_out = np.flatnonzero(fold != j), np.flatnonzero(fold == j)
        classes = np.unique(y[seen])
        if len(classes) == 1:  # many classifiers refuse to learn from one class
            probs_labeled[held_out, classes] = 1
            probs_pool[j, :, classes] = 1
            continue
        model = make_model().fit(x_labeled[seen], y[seen])
        probs_labeled[np.ix_(held_out, model.classes_)] = model.predict_proba(x_labeled[held_out])
        if len(x_pool):
            probs_pool[j][:, model.classes_] = model.predict_proba(x_pool)
    return OutOfFold(probs_labeled, fold, probs_pool)


def stratified_folds(y: Integers, num_folds: int, seed: int = 0) -> Integers:
    """A fold for each row: each class is dealt out like cards, going on where the class before it ended.

    So neither a fold's size nor its share of a class is off by more than one row, however few a class has.
    """
    shuffled = np.random.default_rng(seed).permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    fold = np.empty(len(y), np.int64)
    fold[by_class] = np.arange(len(y)) % num_folds
    return fold


def gradient_boosting(is_categorical: npt.NDArray[np.bool_] | None = None, seed: int = 0) -> Any:
    """Small trees, kept from running wild by l2: without it 26 classes of a few labels each end at chance."""
    # imported here because it takes a second, which `import mnar` need not wait for
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
