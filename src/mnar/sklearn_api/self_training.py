"""`self_training`: self-training of any scikit-learn classifier, with a guidance that rectifies the pseudo-labels."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state, get_tags, indexable
from sklearn.utils.validation import _num_samples, check_is_fitted

from mnar.datasets.user_files.partly_labeled import UNLABELED
from mnar.guidances import Guidance
from mnar.own_data.portfolio.self_training import MakeGuidance, self_train
from mnar.sklearn_api.partial_labels import class_codes, labeled_accuracy


class GuidedSelfTraining(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Self-training of a scikit-learn classifier, with a guidance that rectifies the pseudo-labels.

    In each round, the classifier predicts the rows without a label, the guidance rectifies the predictions, and a copy
    of the classifier is fitted to the labels and to the pseudo-labels that are confident enough.

    `fit(X, y)` takes every X that the classifier takes. In y, the value `unlabeled`, None, NaN, empty text and "?" mean
    "no label". If every row has a label, the classifier is fitted in the usual way.

    `score` leaves out rows without a label, with a warning. Metrics of scikit-learn (`scoring="accuracy"`) cannot do so
    and count such rows as errors. Cross-validate with `cv=LabeledOnlyKFold()`, which tests labelled rows only.

    estimator       a classifier with `predict_proba`, e.g. a Pipeline
    guidance        "none", "prg", "prg_last", "prg_smooth", "cadr", "distribution_alignment", "darp", "simpro" or
                    "tracking"; or a function that makes a guidance for a task, e.g.
                    `functools.partial(PRG, alpha=3.0)`
    rounds          the largest number of rounds; self-training ends earlier when no pseudo-label changes
    threshold       the lowest confidence of a pseudo-label that is used
    balance         whether the guidance gets probabilities that are divided by the class counts of the training rows.
                    None: yes for "cadr" and "simpro", which remove the class distribution of the labels from the
                    predictions; no if the classifier has a `class_weight`, because its predictions are balanced already
    unlabeled       the value in y that means "no label"
    random_state    seed of the order in which rows pass through the guidance; the classifier has its own seed

    Attributes after `fit`:

    classes_              the classes
    estimator_            the classifier of the last round
    transduction_         the class of every training row: the given label, or the predicted class
    guidance_             the guidance after the last round, e.g. with `transitions` for PRG; None without a pool
    num_rounds_           number of rounds, 0 without a pool
    num_pseudo_labels_    number of pseudo-labels of each class that `estimator_` was fitted to, [k]
    """

    def __init__(
        self,
        estimator: Any,
        guidance: str | MakeGuidance = "prg",
        *,
        rounds: int = 5,
        threshold: float = 0.8,
        balance: bool | None = None,
        unlabeled: object = -1,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.estimator, self.guidance, self.rounds, self.threshold = estimator, guidance, rounds, threshold
        self.balance, self.unlabeled, self.random_state = balance, unlabeled, random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        for name in ("sparse", "allow_nan", "categorical", "string", "pairwise"):
            setattr(tags.input_tags, name, getattr(inner, name))
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train on all rows of X, of which y labels some; the docstring of the class describes X and y."""
        if y is None:
            raise ValueError("GuidedSelfTraining requires y to be passed, but the target y is None")
        if not hasattr(self.estimator, "predict_proba"):
            name = type(self.estimator).__name__
            raise TypeError(
                f"{name} has no `predict_proba`, but self-training needs probabilities. "
                f"Wrap it: sklearn.calibration.CalibratedClassifierCV({name}(...))"
            )
        (X,) = indexable(X)  # makes a sparse matrix CSR
        if _num_samples(X) < 2:
            raise ValueError(f"X has n_samples={_num_samples(X)}; self-training needs at least 2 labelled rows")
        classes, codes = class_codes(y, self.unlabeled)
        check_consistent_length(X, codes)
        self.classes_ = classes
        pool = np.flatnonzero(codes == UNLABELED)
        if len(pool):
            self._self_train(X, codes)
        else:
            self.estimator_, self.num_rounds_ = clone(self.estimator).fit(X, classes[codes]), 0
            self.guidance_: Guidance | None = None
            self.num_pseudo_labels_ = np.zeros(len(classes), np.int64)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.transduction_ = classes[codes]
        if len(pool):
            self.transduction_[pool] = self.estimator_.predict(_safe_indexing(X, pool))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the predicted class of each row."""
        check_is_fitted(self)
        predicted: npt.NDArray[Any] = self.estimator_.predict(X)
        return predicted

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class for each row, [n, k], in the order of `classes_`."""
        check_is_fitted(self)
        probs: npt.NDArray[np.float64] = self.estimator_.predict_proba(X)
        return probs

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on the rows that have a label; rows without one are left out with a warning."""
        return labeled_accuracy(self, X, y, self.unlabeled, sample_weight)

    def _self_train(self, x: Any, codes: npt.NDArray[np.int64]) -> None:
        def fit(rows: Any, labels: npt.NDArray[Any]) -> Any:
            return clone(self.estimator).fit(rows, labels)

        result = self_train(
            fit,
            x,
            codes,
            classes=self.classes_,
            guidance=self.guidance,
            rounds=self.rounds,
            threshold=self.threshold,
            balance=False if self.balance is None and _has_class_weight(self.estimator) else self.balance,
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
        )
        self.estimator_, self.guidance_, self.num_rounds_ = result.model, result.guidance, result.num_rounds
        used = result.pseudo_labels[result.pseudo_labels != UNLABELED]
        self.num_pseudo_labels_ = np.bincount(used, minlength=len(self.classes_))


# The public name reads like a verb: `mnar.self_training(classifier, guidance="cadr").fit(X, y)`.
self_training = GuidedSelfTraining


def _has_class_weight(estimator: Any) -> bool:
    """Whether the estimator, or a step of it, weights the classes."""
    params = estimator.get_params(deep=True)
    return any(name.rpartition("__")[2] == "class_weight" and value is not None for name, value in params.items())
