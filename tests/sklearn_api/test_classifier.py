"""MNARClassifier: the contract of scikit-learn, and the additional attributes."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.sparse import csr_array  # type: ignore[import-untyped]
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from mnar.config import RunConfig
from mnar.own_data import in_memory
from mnar.own_data.inspection import inspection
from mnar.own_data.portfolio import OBJECTIVES
from mnar.own_data.portfolio.members import NAMES
from mnar.sklearn_api import classifier
from mnar.sklearn_api.classifier import MNARClassifier
from mnar.sklearn_api.labeled_folds import LabeledOnlyKFold
from mnar.training.meters import Diverged

PORTFOLIO = {"fast": True}
NETWORK = {"guidance": "cadr", "iterations": 60}  # a guidance asks for one network
MINUS_ONE = {"check_classifiers_classes": "its classes are -1 and 1, and -1 means unlabelled here; see unlabeled=None"}


@pytest.fixture(scope="module")
def blobs() -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Three clouds; 20, 8 and 2 labels, -1 where there is none; and the truth."""
    x, truth = make_blobs(150, centers=[(-4, 0), (0, 4), (4, 0)], random_state=1)
    y = np.full(len(truth), -1)
    for c, num_labels in enumerate((20, 8, 2)):
        kept = np.flatnonzero(truth == c)[:num_labels]
        y[kept] = c
    return x, y, truth


@pytest.fixture(scope="module", params=[PORTFOLIO, NETWORK], ids=["portfolio", "network"])
def fitted(blobs: Any, request: pytest.FixtureRequest) -> MNARClassifier:
    x, y, _ = blobs
    return MNARClassifier(**request.param).fit(x, y)


@pytest.mark.filterwarnings("ignore:every row has a label")
@parametrize_with_checks(
    [MNARClassifier(fast=True), MNARClassifier("pseudo_label", "cadr", iterations=30)],
    expected_failed_checks=lambda made: MINUS_ONE,
)
def test_it_passes_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("options", [PORTFOLIO, NETWORK])
def test_with_unlabeled_none_it_passes_the_check_in_which_minus_one_is_a_class(options: dict[str, Any]) -> None:
    check_classifiers_classes("MNARClassifier", MNARClassifier(**options, unlabeled=None))


def test_blobs_are_classified_and_every_row_gets_a_class(blobs: Any, fitted: MNARClassifier) -> None:
    x, y, truth = blobs
    assert fitted.score(x, truth) > 0.95
    np.testing.assert_array_equal(fitted.transduction_[y != -1], y[y != -1])
    np.testing.assert_array_equal(fitted.transduction_[y == -1], fitted.predict(x)[y == -1])


def test_the_pool_is_estimated_at_first_use_and_the_training_data_are_then_dropped(blobs: Any) -> None:
    x, y, truth = blobs
    model = MNARClassifier(fast=True).fit(x, y)
    copied = pickle.loads(pickle.dumps(model))
    assert copied._training_data is not None
    shares = np.bincount(truth[y == -1]) / (y == -1).sum()
    np.testing.assert_allclose(copied.class_prior_, shares, atol=0.1)
    assert copied._training_data is None
    assert copied.class_prior_interval_.shape == (3, 2)
    assert (copied.class_prior_interval_[:, 0] <= copied.class_prior_).all()
    assert (copied.class_prior_ <= copied.class_prior_interval_[:, 1]).all()
    np.testing.assert_allclose(copied.label_propensity_, [20 / 50, 8 / 50, 2 / 50], atol=0.1)
    assert copied.mnar_test_.p_value < 0.05
    np.testing.assert_array_equal(model.class_prior_, copied.class_prior_)


def test_the_estimates_are_in_the_order_of_the_classes_if_the_labels_are_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(inspection.MOST_ROWS, "table", 60)
    x, truth = make_blobs([250, 200, 4, 146], centers=[(-9, 0), (0, 9), (9, 0), (0, -9)], random_state=0)
    y = np.where(np.random.default_rng(0).random(600) < 0.5, truth, -1)
    model = MNARClassifier(fast=True).fit(x, y)
    num_labels, num_unlabeled = np.bincount(y[y != -1]), (y == -1).sum()
    assert model.class_prior_.shape == (4,)
    np.testing.assert_allclose(model.class_prior_, np.bincount(truth[y == -1]) / num_unlabeled, atol=0.1)
    num_rows = num_labels + model.class_prior_ * num_unlabeled
    np.testing.assert_allclose(model.label_propensity_, num_labels / num_rows)


def test_an_estimate_that_is_unknown_for_a_class_is_nan(blobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_second(*data: Any, **options: Any) -> inspection.Inspection:
        first, second, third = (found := inspection.inspect_data(*data, **options)).classes
        return replace(found, classes=(first, replace(second, pool_share=None, labeled_one_in=None), third))

    monkeypatch.setattr(classifier, "inspect_data", without_the_second)
    model = MNARClassifier(fast=True).fit(*blobs[:2])
    for estimates in (model.class_prior_, model.label_propensity_, model.class_prior_interval_[:, 0]):
        assert np.isnan(estimates).tolist() == [False, True, False]


def test_the_estimates_raise_an_error_if_every_row_has_a_label(blobs: Any) -> None:
    x, _, truth = blobs
    model = MNARClassifier(fast=True).fit(x, truth)
    for name in ("class_prior_", "class_prior_interval_", "label_propensity_", "mnar_test_"):
        with pytest.raises(AttributeError, match="Every row has a label"):
            getattr(model, name)


@pytest.mark.parametrize("marker", ["none", "nan", "minus one as text", "another"])
def test_classes_may_be_strings_and_no_label_may_be_written_in_several_ways(
    blobs: Any, fitted: MNARClassifier, marker: str
) -> None:
    x, y, _ = blobs
    missing: Any = {"none": None, "nan": np.nan, "minus one as text": "-1", "another": "who knows"}[marker]
    names = np.array([*"abc", missing], object)[y]
    model = clone(fitted).set_params(unlabeled="who knows" if marker == "another" else -1).fit(x, names)
    assert model.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.predict(x), np.array(["a", "b", "c"])[fitted.predict(x)])


def test_an_int_seed_repeats_the_fit_and_leaves_global_randomness_alone(blobs: Any, fitted: MNARClassifier) -> None:
    x, y, _ = blobs
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    again = clone(fitted).fit(x, y)
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    assert torch.equal(torch.get_rng_state(), torch_before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    other = clone(fitted).set_params(random_state=1).fit(x, y)
    assert not np.array_equal(other.predict_proba(x), fitted.predict_proba(x))


def test_a_pickled_model_predicts_the_same_and_holds_plain_arrays(blobs: Any, fitted: MNARClassifier) -> None:
    x, _, _ = blobs
    loaded = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    kept = loaded._weights if loaded.choice_ is None else loaded._portfolio.portfolio.members[0].arrays()
    assert all(isinstance(array, np.ndarray) for array in kept.values())


def test_a_grid_search_over_a_pipeline_scores_labelled_rows_only(blobs: Any) -> None:
    x, y, truth = blobs
    pipeline = make_pipeline(StandardScaler(), MNARClassifier(fast=True))
    learns_nothing = ["train.lr=1e-9", "train.collapse=warn"]
    grid = [
        {
            "mnarclassifier__guidance": ["cadr"],
            "mnarclassifier__iterations": [40],
            "mnarclassifier__settings": [learns_nothing],
        },
        {"mnarclassifier__learner": ["kernel"]},
    ]
    with pytest.warns(UserWarning, match="the network has not learned: the model is right for"):
        search = GridSearchCV(pipeline, grid, cv=LabeledOnlyKFold(2)).fit(x, y)
    assert search.best_params_ == {"mnarclassifier__learner": "kernel"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(x, truth) > 0.7


def test_a_sparse_table_gives_what_the_dense_one_gives(
    blobs: Any, fitted: MNARClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = blobs
    model = clone(fitted).fit(csr_array(x), y)
    np.testing.assert_array_equal(model.predict_proba(csr_array(x)), fitted.predict_proba(x))
    monkeypatch.setattr(classifier, "MOST_CELLS", 299)
    with pytest.raises(ValueError, match="as a dense array it would have 300 cells; at most 299 are allowed"):
        model.predict(csr_array(x))


def test_a_missing_number_is_allowed_in_new_rows_too(blobs: Any, fitted: MNARClassifier) -> None:
    x, y, _ = blobs
    holed = np.where(np.arange(x.size).reshape(x.shape) % 17 == 0, np.nan, x)
    assert np.isfinite(fitted.predict_proba(holed)).all()
    assert np.isfinite(clone(fitted).fit(holed, y).predict_proba(x)).all()


def test_images_go_through_a_convolutional_network_or_through_patch_features() -> None:
    digits = load_digits()
    images, y = digits.images[:200].astype(np.uint8), np.where(np.arange(200) < 60, digits.target[:200], -1)
    network = MNARClassifier("fixmatch", iterations=2).fit(images, y)
    assert network.predict_proba(images[:5]).shape == (5, 10)
    assert network._config.model.name == "small_cnn"
    model = MNARClassifier("kernel").fit(images, y)
    assert (model.predict(images) == digits.target[:200])[60:].mean() > 0.6
    with pytest.raises(
        ValueError, match=r"images of shape \(1, 7, 8\), but the model was fitted to images of shape \(1, 8, 8\)"
    ):
        model.predict(images[:, 1:])


@pytest.mark.parametrize("learner", ["supervised", "vime"])
def test_learner_and_guidance_are_taken_by_name(blobs: Any, learner: str) -> None:
    x, y, truth = blobs
    settings = ["learner.pretraining_epochs=1"] if learner == "vime" else []
    guidance = "simpro" if learner == "vime" else "none"
    model = MNARClassifier(learner, guidance, iterations=60, settings=settings).fit(x, y)
    assert (model._config.learner.name, model._config.guidance.name) == (learner, guidance)
    assert model.score(x, truth) > 0.6


def test_a_first_stage_without_labels_gives_another_network() -> None:
    digits = load_digits()
    images = (digits.images[:200, None] * 15).astype(np.uint8)
    y = np.where(np.arange(200) < 60, digits.target[:200], -1)
    first_stage = ["train.pretraining=20"]
    settings = ["train.batch_labeled=16", "engine.device=cpu"]
    plain, started = (
        MNARClassifier("fixmatch", iterations=40, settings=[*settings, *extra], random_state=0).fit(images, y)
        for extra in ([], first_stage)
    )
    assert not np.allclose(plain.predict_proba(images), started.predict_proba(images))
    assert (started.predict(images) == digits.target[:200])[60:].mean() > 0.4


def test_wrong_input_is_refused_with_a_remedy(blobs: Any, fitted: MNARClassifier) -> None:
    x, y, _ = blobs
    with pytest.raises(
        ValueError, match="no row has a label, and 150 of 150 rows are unlabelled; label rows of at least two classes"
    ):
        MNARClassifier().fit(x, np.full(len(y), -1))
    with pytest.raises(ValueError, match=r"every label is of class 1, .* If -1 is a class, choose another `unlabeled`"):
        MNARClassifier().fit(x, np.where(y == 0, -1, 1))
    with pytest.raises(
        ValueError, match=r"unknown learner 'fixmatsch'; choose from .*'auto', .*'fixmatch', .*'kernel'"
    ):
        MNARClassifier("fixmatsch").fit(x, y)
    with pytest.raises(ValueError, match="unknown objective 'f1'; choose from"):
        MNARClassifier(objective="f1", fast=True).fit(x, y)
    with pytest.raises(ValueError, match="minutes is -1; the time must be positive"):
        MNARClassifier(minutes=-1, fast=True).fit(x, y)
    with pytest.raises(ValueError, match="expecting 2 features"):
        fitted.predict(x[:, :1])


def test_if_every_row_has_a_label_the_named_learner_is_ignored_with_a_warning(blobs: Any) -> None:
    x, _, truth = blobs
    with pytest.warns(UserWarning, match="plain supervised learning; `learner` and `guidance` are ignored"):
        model = MNARClassifier("pseudo_label", iterations=2).fit(x, truth)
    assert model._config.learner.name == "supervised"


def test_progress_is_printed_when_asked_for(blobs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    x, y, _ = blobs
    MNARClassifier("pseudo_label", iterations=2, verbose=True).fit(x, y)
    assert capsys.readouterr().out.startswith("training, step 1: loss ")
    model = MNARClassifier("kernel", verbose=True).fit(x, y)
    assert model.choice_ is not None
    assert capsys.readouterr().out == f"{model.choice_.reason}\n"


def test_score_is_the_accuracy_of_the_labelled_rows_with_a_warning_about_the_others(
    blobs: Any, fitted: MNARClassifier
) -> None:
    x, y, truth = blobs
    wrong = np.where(np.arange(len(y)) % 3 == 0, (truth + 1) % 3, truth)
    is_labeled, is_right = np.arange(len(y)) % 2 == 0, fitted.predict(x) == wrong
    weights = np.arange(len(y)) + 1.0
    assert fitted.score(x, wrong) == is_right.mean()
    for holed in (np.where(is_labeled, wrong, -1), np.where(is_labeled, wrong, np.nan)):
        with pytest.warns(
            UserWarning, match="75 of 150 rows in y have no label and are not scored; .*LabeledOnlyKFold"
        ):
            assert fitted.score(x, holed) == is_right[is_labeled].mean()
        with pytest.warns(UserWarning, match="not scored"):
            weighted = fitted.score(x, holed, sample_weight=weights)
        assert weighted == pytest.approx(np.average(is_right[is_labeled], weights=weights[is_labeled]))
    with pytest.raises(ValueError, match=r"none of the 150 rows in y has a label, .* use cv=LabeledOnlyKFold\(\)"):
        fitted.score(x, np.full(len(y), -1))


@pytest.mark.filterwarnings("error")
def test_cross_validation_with_folds_of_labelled_rows_scores_without_a_warning(
    blobs: Any, fitted: MNARClassifier
) -> None:
    x, y, _ = blobs
    scores = cross_val_score(clone(fitted), x, y, cv=LabeledOnlyKFold(2))
    assert len(scores) == 2
    assert scores.min() > 0.5


class Frame(dict[str, list[Any]]):
    """A stand-in for a DataFrame, because pandas is not a dependency."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        return [np.asarray(column).dtype for column in self.values()]

    @property
    def shape(self) -> tuple[int, int]:
        return len(next(iter(self.values()))), len(self)


def test_a_frame_with_text_and_holes_is_learned_by_its_columns(blobs: Any) -> None:
    x, y, truth = blobs
    colours = np.array(["red", "green", "blue", None], object)[np.where(np.arange(len(y)) % 9 == 0, 3, truth)]
    frame = Frame(width=x[:, 0].tolist(), colour=colours.tolist(), always=["one"] * len(y))
    with pytest.warns(UserWarning, match="'always' left out"):
        model = MNARClassifier(fast=True).fit(frame, y)
    turned = Frame(colour=frame["colour"], always=frame["always"], width=frame["width"])
    np.testing.assert_array_equal(model.predict(frame), model.predict(turned))
    assert model.score(frame, truth) > 0.95
    with pytest.raises(ValueError, match="but the model was fitted to a DataFrame"):
        model.predict(x)


@pytest.mark.parametrize("as_function", [False, True])
def test_any_network_can_be_the_backbone(blobs: Any, as_function: bool) -> None:
    x, y, truth = blobs
    torch.manual_seed(0)  # for the network that is made here

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU())

    backbone = make if as_function else make()
    model = MNARClassifier(guidance="simpro", iterations=400, backbone=backbone).fit(x, y)
    assert {name.partition(".")[0] for name in model._weights} == {"network", "head"}
    assert model._weights["network.0.weight"].shape == (16, 2)
    assert (model.transduction_ == truth).mean() > 0.9
    assert np.array_equal(clone(model).fit(x, y).predict_proba(x), model.predict_proba(x))


def test_a_backbone_that_starts_slowly_is_trained_to_the_end(blobs: Any) -> None:
    """With this seed, the collapse detector raises a false alarm in the first steps."""
    x, y, truth = blobs

    def fit(*settings: str) -> MNARClassifier:
        torch.manual_seed(4)
        backbone = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU())
        options: dict[str, Any] = {"iterations": 200, "backbone": backbone, "random_state": 4, "settings": settings}
        return MNARClassifier(guidance="simpro", **options).fit(x, y)

    with pytest.raises(Diverged):
        fit("train.collapse=restart")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (fit().transduction_ == truth).mean() > 0.9


def test_a_network_that_collapses_is_trained_again_with_a_tenth_of_the_learning_rate(
    blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, truth = blobs
    rates: list[float] = []

    def make_trainer(config: RunConfig, *others: Any) -> Any:
        rates.append(config.train.lr)
        return real(config, *others)

    real = in_memory.make_trainer
    monkeypatch.setattr(in_memory, "make_trainer", make_trainer)
    model = MNARClassifier("supervised", iterations=100, settings=["train.lr=3"]).fit(x, y)
    assert rates == [3.0, 0.3]
    assert (model.transduction_ == truth).mean() > 0.95
    rates.clear()
    with pytest.raises(Diverged, match=r"the loss on the labels is .*settings=\['train.lr=0.0003'\]"):
        MNARClassifier("supervised", iterations=100, settings=["train.lr=1000"]).fit(x, y)
    assert rates == [1000.0, 100.0]


# ---- the portfolio


def test_the_default_fit_tries_every_member_and_the_choice_says_what_was_chosen_and_why(blobs: Any) -> None:
    x, y, truth = blobs
    model = MNARClassifier(iterations=20).fit(x, y)
    choice = model.choice_
    assert choice is not None
    assert tuple(member.name for member in choice.members) == NAMES
    chosen = [member for member in choice.members if member.weight > 0]
    assert {member.name for member in chosen} == set(choice.names)
    assert len(model._portfolio.portfolio.members) == len(chosen)
    total = sum(member.weight for member in chosen)
    for member in chosen:
        assert f"{member.name} ({member.weight / total:.0%})" in choice.reason
    assert choice.comparison is not None
    assert (model.predict(x) == truth).mean() > 0.95
    assert choice.balanced_accuracy.low <= choice.balanced_accuracy.value <= choice.balanced_accuracy.high


def test_a_named_member_is_the_only_one_and_an_unknown_name_is_refused(blobs: Any) -> None:
    x, y, truth = blobs
    model = MNARClassifier("graph").fit(x, y)
    assert model.choice_ is not None
    assert model.choice_.names == ("graph",)
    assert (model.predict(x) == truth).mean() > 0.95
    with pytest.raises(ValueError, match=r"the member 'graph' does not suit these data; choose from .*'kernel'"):
        MNARClassifier("graph").fit(x, truth)


def test_a_named_network_has_no_choice(blobs: Any) -> None:
    assert MNARClassifier("pseudo_label", iterations=2).fit(*blobs[:2]).choice_ is None


def test_with_the_objective_accuracy_overlapping_rows_get_the_frequent_class_of_the_pool() -> None:
    """By Bayes' rule the boundary moves from 0 to log(9) / 2 / mean = 1.1 if one class has 90 % of the pool."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 0, 1], [60, 60, 360, 40])
    x = rng.normal(2.0 * truth - 1, 1.0)[:, None]
    y = np.where(np.arange(len(truth)) < 120, truth, -1)
    balanced, accurate = (MNARClassifier("kernel", objective=name).fit(x, y) for name in OBJECTIVES)
    shares = [(model.transduction_[120:] == 0).mean() for model in (balanced, accurate)]
    assert shares[0] < 0.82 < shares[1]
    assert accurate.score(x[120:], truth[120:]) > balanced.score(x[120:], truth[120:])
    assert balanced_accuracy_score(truth[120:], balanced.predict(x[120:])) > 0.8
    # both know the shares of the pool: the odds differ by the ratio of the estimated shares
    odds = [np.divide(*model.predict_proba(x).T) for model in (balanced, accurate)]
    estimated = accurate._portfolio.portfolio.shares
    np.testing.assert_allclose(odds[1] / odds[0], estimated[0] / estimated[1], rtol=1e-6)
    assert estimated[0] == pytest.approx(0.9, abs=0.06)


def test_the_time_limit_leaves_out_slow_members_and_says_so(blobs: Any) -> None:
    choice = MNARClassifier(fast=True, minutes=1e-9).fit(*blobs[:2]).choice_
    assert choice is not None
    assert [member.remark.partition(",")[0].split()[-2:] for member in choice.members] == [[], ["more", "seconds"]]
    assert choice.names == ("kernel",)
