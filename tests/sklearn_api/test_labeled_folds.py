"""LabeledOnlyKFold: which rows are in which fold, and which rows count as labelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

from mnar.sklearn_api.labeled_folds import LabeledOnlyKFold, split_labels

Y = np.array([0, 1, -1, 0, 1, -1, 0, 1, -1, 0, 1, -1, 0, 0])
X = np.arange(len(Y), dtype=float)[:, None]


def test_each_labelled_row_is_tested_once_and_no_unlabelled_row_ever() -> None:
    tested = np.concatenate([test for _, test in LabeledOnlyKFold(4).split(X, Y)])
    assert sorted(tested) == np.flatnonzero(Y != -1).tolist()


def test_training_sets_hold_every_unlabelled_row_and_all_labelled_rows_but_the_tested() -> None:
    for train, test in LabeledOnlyKFold(4).split(X, Y):
        assert sorted([*train, *test]) == list(range(len(Y)))
        assert set(np.flatnonzero(Y == -1)) <= set(train)


def test_the_labelled_part_of_the_folds_is_that_of_stratified_k_fold() -> None:
    labeled = np.flatnonzero(Y != -1)
    options = {"shuffle": True, "random_state": 3}
    ours = LabeledOnlyKFold(3, **options).split(X, Y)
    theirs = StratifiedKFold(3, **options).split(X[labeled], Y[labeled])
    for (train, test), (their_train, their_test) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(test, labeled[their_test])
        np.testing.assert_array_equal(np.intersect1d(train, labeled), labeled[their_train])


def test_it_serves_as_cv_of_scikit_learn() -> None:
    class Labeled(LogisticRegression):  # type: ignore[misc]
        def fit(self, X: Any, y: Any) -> Any:
            return super().fit(X[y != -1], y[y != -1])

    folds = LabeledOnlyKFold(3)
    assert folds.get_n_splits() == 3
    assert len(cross_val_score(Labeled(), X, Y, cv=folds)) == 3


def test_too_few_labels_and_no_labels_at_all_are_refused_with_a_remedy() -> None:
    with pytest.raises(
        ValueError,
        match="2 rows have a label, which is too few for 5 folds; label more rows or choose a smaller n_splits",
    ):
        next(LabeledOnlyKFold().split(X, np.where(np.arange(len(Y)) < 2, Y, -1)))
    with pytest.raises(ValueError, match="y is None"):
        next(LabeledOnlyKFold().split(X))


@pytest.mark.parametrize(
    ("y", "unlabeled", "labels"),
    [
        ([0, -1, 2], -1, [0, 2]),
        ([0.0, np.nan, -1.0, 2.0], -1, [0, 2]),
        (np.array([0, None, np.nan, 2], object), -1, [0, 2]),
        (np.array([True, False]), -1, [True, False]),
        (["a", "b", "-1", "nan", " "], -1, ["a", "b"]),
        (np.array(["a", None, np.nan, -1, ""], object), -1, ["a"]),
        (["a", "NA", "None", "?"], -1, ["a", "NA", "None"]),
        (["a", "NA", "none", ""], "NA", ["a", "none"]),
        (np.array([0, 255, 2], np.uint8), 255, [0, 2]),
        ([-1, 1], None, [-1, 1]),
        ([0, 9, 1], 9, [0, 1]),
    ],
)
def test_the_marker_none_nan_empty_text_and_a_question_mark_mean_no_label(
    y: Any, unlabeled: Any, labels: list[Any]
) -> None:
    is_labeled, found = split_labels(y, unlabeled)
    assert found.tolist() == labels
    assert is_labeled.sum() == len(labels)
    assert found.dtype != object or isinstance(found[0], str)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32, bool])
def test_labels_that_are_numbers_keep_their_type(dtype: type) -> None:
    assert split_labels(np.array([0, 1], dtype))[1].dtype == dtype


def test_labels_in_a_table_of_two_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"y has shape \(3, 2\)"):
        split_labels(np.zeros((3, 2)))
