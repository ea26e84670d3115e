"""`mnar.self_training`: the contract of scikit-learn, and the additional attributes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse import coo_array, csr_array  # type: ignore[import-untyped]
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_blobs
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

import mnar
from mnar import PRG, LabeledOnlyKFold, Task, self_training
from mnar.guidances import CReST
from mnar.own_data.portfolio.member import balanced
from mnar.sklearn_api import GuidedSelfTraining
from tests.docs.pages import blocks

MINUS_ONE = {"check_classifiers_classes": "its classes are -1 and 1, and -1 means unlabelled here; see unlabeled=None"}
REGRESSION = LogisticRegression()


@pytest.fixture(scope="module")
def blobs() -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Three clouds that overlap; 20, 8 and 2 labels, -1 where there is none; and the truth."""
    x, truth = make_blobs(150, centers=[(-2, 0), (0, 2), (2, 0)], random_state=1)
    y = np.full(len(truth), -1)
    for c, num_labels in enumerate((20, 8, 2)):
        y[np.flatnonzero(truth == c)[:num_labels]] = c
    return x, y, truth


@parametrize_with_checks(
    [self_training(LogisticRegression(), "simpro")],
    expected_failed_checks=lambda made: MINUS_ONE,
)
def test_it_passes_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_with_unlabeled_none_it_passes_the_check_in_which_minus_one_is_a_class() -> None:
    check_classifiers_classes("GuidedSelfTraining", self_training(LogisticRegression(), unlabeled=None))


@pytest.mark.parametrize("guidance", ["none", "prg", "simpro"])
def test_every_row_gets_a_class_and_the_labels_stay(blobs: Any, guidance: str) -> None:
    x, y, truth = blobs
    model = self_training(REGRESSION, guidance).fit(x, y)
    assert isinstance(model, GuidedSelfTraining)
    assert model.classes_.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(model.transduction_[y != -1], y[y != -1])
    np.testing.assert_array_equal(model.transduction_[y == -1], model.predict(x)[y == -1])
    np.testing.assert_array_equal(model.predict_proba(x), model.estimator_.predict_proba(x))
    np.testing.assert_array_equal(model.predict_proba(x).argmax(1), model.predict(x))
    assert model.score(x, truth) > 0.7
    assert model.n_features_in_ == 2


def test_the_last_fit_is_to_the_labels_and_the_counted_pseudo_labels(blobs: Any) -> None:
    x, y, _ = blobs
    fits = []

    class Recorded(LogisticRegression):  # type: ignore[misc]
        def fit(self, rows: Any, labels: Any) -> Any:
            fits.append(np.bincount(labels, minlength=3))
            return super().fit(rows, labels)

    model = self_training(Recorded(), "cadr", rounds=3).fit(x, y)
    np.testing.assert_array_equal(model.num_pseudo_labels_, fits[-1] - (20, 8, 2))
    assert model.num_pseudo_labels_.sum() > 30
    assert model.num_rounds_ <= 3
    assert len(fits) - 1 <= model.num_rounds_


def test_prg_shows_its_transitions_and_may_be_given_as_a_function_with_options(blobs: Any) -> None:
    x, y, _ = blobs
    model = self_training(REGRESSION, partial(PRG, alpha=2.0)).fit(x, y)
    assert isinstance(model.guidance_, PRG)
    assert model.guidance_.alpha == 2.0
    assert model.guidance_.transitions.shape == (3, 3)
    assert not np.array_equal(model.num_pseudo_labels_, self_training(REGRESSION, "none").fit(x, y).num_pseudo_labels_)


def test_a_classifier_with_a_class_weight_is_not_balanced_twice(blobs: Any) -> None:
    x, y, _ = blobs
    seen: list[Any] = []

    def watch(task: Task) -> Any:
        guide = mnar.GUIDANCES["simpro"](task)
        guide.register_forward_pre_hook(lambda module, given: seen.append((given[0].numpy(), given[1].numpy())))
        return guide

    def first_predictions(estimator: Any, **options: Any) -> npt.NDArray[Any]:
        seen.clear()
        self_training(estimator, watch, rounds=1, **options).fit(x, y)
        probs, rows = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        return np.asarray(probs[rows.argsort()])

    labels, pool = y != -1, y == -1
    weighted = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
    raw = clone(weighted).fit(x[labels], y[labels]).predict_proba(x[pool])
    np.testing.assert_allclose(first_predictions(weighted), raw, atol=1e-6)
    np.testing.assert_allclose(
        first_predictions(weighted, balance=True), balanced(raw, np.array([20, 8, 2])), atol=1e-6
    )
    plain = clone(REGRESSION).fit(x[labels], y[labels]).predict_proba(x[pool])
    np.testing.assert_allclose(first_predictions(REGRESSION), balanced(plain, np.array([20, 8, 2])), atol=1e-6)


@pytest.mark.parametrize("marker", ["none", "nan", "another"])
def test_classes_may_be_strings_and_no_label_may_be_written_in_several_ways(blobs: Any, marker: str) -> None:
    x, y, _ = blobs
    missing: Any = {"none": None, "nan": np.nan, "another": "who knows"}[marker]
    names = np.array([*"abc", missing], object)[y]
    model = self_training(REGRESSION, unlabeled="who knows" if marker == "another" else -1).fit(x, names)
    assert model.classes_.tolist() == ["a", "b", "c"]
    numbers = self_training(REGRESSION).fit(x, y)
    np.testing.assert_array_equal(model.predict(x), np.array(["a", "b", "c"])[numbers.predict(x)])
    np.testing.assert_array_equal(model.transduction_, np.array(["a", "b", "c"])[numbers.transduction_])


def test_if_every_row_has_a_label_the_classifier_is_fitted_in_the_usual_way(blobs: Any) -> None:
    x, _, truth = blobs
    model = self_training(REGRESSION).fit(x, truth)
    np.testing.assert_array_equal(model.predict_proba(x), clone(REGRESSION).fit(x, truth).predict_proba(x))
    assert (model.num_rounds_, model.guidance_) == (0, None)
    assert model.num_pseudo_labels_.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(model.transduction_, truth)


@pytest.mark.parametrize("make", [csr_array, coo_array])
def test_a_sparse_matrix_gives_what_the_dense_one_gives(blobs: Any, make: Any) -> None:
    x, y, _ = blobs
    sparse = self_training(REGRESSION).fit(make(x), y)
    np.testing.assert_allclose(sparse.predict_proba(make(x)), self_training(REGRESSION).fit(x, y).predict_proba(x))


class Frame:
    """A stand-in for a DataFrame, because pandas is not a dependency: rows are selected with `iloc` and `take`."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        self.columns = columns
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def iloc(self) -> Frame:
        return self

    def __getitem__(self, rows: Any) -> Frame:
        return Frame({name: column[rows] for name, column in self.columns.items()})

    def take(self, rows: Any, axis: int = 0) -> Frame:
        return self[rows]


def test_a_frame_reaches_the_classifier_as_a_frame(blobs: Any) -> None:
    x, y, _ = blobs
    frame = Frame({"a": x[:, 0], "b": x[:, 1]})
    as_array = FunctionTransformer(lambda rows: np.stack([rows.columns["a"], rows.columns["b"]], 1))
    model = self_training(make_pipeline(as_array, LogisticRegression())).fit(frame, y)
    expected = self_training(REGRESSION).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(frame), expected.predict_proba(x))


def test_texts_are_classified_by_a_pipeline() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 2
    words = [["goal", "ball", "team", "win"], ["vote", "law", "party", "win"]]
    texts = [" ".join(rng.choice(words[c], 6)) for c in truth]
    y = np.where(np.arange(60) < 6, truth, -1)
    model = self_training(make_pipeline(CountVectorizer(), MultinomialNB())).fit(texts, y)
    assert (model.transduction_ == truth).mean() > 0.95


def test_clone_and_pickle_keep_parameters_and_predictions(blobs: Any) -> None:
    x, y, _ = blobs
    model = self_training(REGRESSION, partial(PRG, alpha=2.0), rounds=2, threshold=0.7).fit(x, y)
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(loaded.guidance_.transitions, model.guidance_.transitions)
    copied = clone(model)
    assert (copied.rounds, copied.threshold, copied.guidance.keywords) == (2, 0.7, {"alpha": 2.0})
    np.testing.assert_array_equal(copied.fit(x, y).predict_proba(x), model.predict_proba(x))


@pytest.mark.filterwarnings("error")
def test_a_grid_search_chooses_guidance_and_options_of_the_classifier(blobs: Any) -> None:
    x, y, truth = blobs
    grid = {"guidance": ["none", "simpro"], "estimator__C": [1e-9, 1.0]}
    search = GridSearchCV(self_training(LogisticRegression()), grid, cv=LabeledOnlyKFold(2)).fit(x, y)
    assert search.best_params_["estimator__C"] == 1.0
    assert search.score(x, truth) > 0.7


def test_score_leaves_out_rows_without_a_label_with_a_warning(blobs: Any) -> None:
    x, y, _ = blobs
    model = self_training(REGRESSION).fit(x, y)
    with pytest.warns(UserWarning, match="120 of 150 rows in y have no label and are not scored"):
        assert model.score(x, y) == (model.predict(x) == y)[y != -1].mean()
    with pytest.raises(ValueError, match="none of the 150 rows in y has a label"):
        model.score(x, np.full(150, -1))


def test_cross_validation_with_ordinary_folds_scores_the_labelled_rows_of_each_fold_and_warns(blobs: Any) -> None:
    x, y, _ = blobs
    model, folds = self_training(REGRESSION), StratifiedKFold(2)
    by_hand = []
    for train, test in folds.split(x, y):
        is_right = clone(model).fit(x[train], y[train]).predict(x[test]) == y[test]
        by_hand.append(is_right[y[test] != -1].mean())
    with pytest.warns(
        UserWarning, match=r"60 of 75 rows in y have no label and are not scored; .*LabeledOnlyKFold\(\)"
    ):
        assert cross_val_score(model, x, y, cv=folds).tolist() == by_hand


@pytest.mark.filterwarnings("error")
def test_a_metric_of_scikit_learn_is_right_with_folds_of_labelled_rows_only(blobs: Any) -> None:
    x, y, _ = blobs
    model, share_labeled = self_training(REGRESSION), (y != -1).mean()
    right, wrong = (
        cross_val_score(model, x, y, cv=cv, scoring="accuracy") for cv in (LabeledOnlyKFold(2), StratifiedKFold(2))
    )
    np.testing.assert_array_equal(right, cross_val_score(model, x, y, cv=LabeledOnlyKFold(2)))
    assert right.min() > 0.5
    assert wrong.max() <= share_labeled, "as docs/own_data.md warns: every unlabelled row is an error"


@pytest.mark.parametrize("estimator", [LinearSVC(), SVC(), make_pipeline(StandardScaler(), LinearSVC())])
def test_a_classifier_without_probabilities_is_refused_and_calibration_is_the_remedy(
    blobs: Any, estimator: Any
) -> None:
    x, y, truth = blobs
    with pytest.raises(TypeError, match=r"has no `predict_proba`.*CalibratedClassifierCV\("):
        self_training(estimator).fit(x, y)
    calibrated = self_training(CalibratedClassifierCV(estimator, cv=2), "simpro").fit(x, y)
    assert calibrated.score(x, truth) > 0.7


@pytest.mark.parametrize(
    ("guidance", "name"), [("crest", "crest"), ("crest_plus", "crest_plus"), ("cdmad", "cdmad"), (CReST, "CReST")]
)
def test_a_guidance_that_needs_a_network_is_refused(blobs: Any, guidance: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"guidance '{name}' needs a network; choose from .*'prg'"):
        self_training(REGRESSION, guidance).fit(*blobs[:2])


def test_wrong_input_is_refused_with_a_remedy(blobs: Any) -> None:
    x, y, _ = blobs
    with pytest.raises(ValueError, match="no row has a label, and 150 of 150 rows are unlabelled"):
        self_training(REGRESSION).fit(x, np.full(150, -1))
    with pytest.raises(ValueError, match="every label is of class 1"):
        self_training(REGRESSION).fit(x, np.where(y == 0, -1, 1))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        self_training(REGRESSION).fit(x[:-1], y)
    with pytest.raises(ValueError, match="rounds is 0"):
        self_training(REGRESSION, rounds=0).fit(x, y)


def test_fit_leaves_the_given_classifier_and_global_randomness_alone(blobs: Any) -> None:
    x, y, _ = blobs
    given = LogisticRegression()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    self_training(given).fit(x, y)
    assert not hasattr(given, "coef_")
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_the_example_in_the_documentation_runs_and_the_pool_helps_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("docs/portfolio.md", "python")
    exec(compile(example.text, "docs/portfolio.md", "exec"), {})
    alone, guided = (float(share) for share in re.findall(r": ([0-9.]+)%", capsys.readouterr().out))
    assert guided > alone + 3
