"""`MNARClassifier`: a scikit-learn estimator that trains on half-labelled data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from mnar.config import OWN_DATA, RunConfig, names_of
from mnar.datasets.npz_file import samples as image_samples
from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table, unnamed_columns
from mnar.datasets.user_files.table import features_like, features_of
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.models import NetworkOrFactory
from mnar.own_data.defaults import default_sections
from mnar.own_data.in_memory import keep_random_state, network_probs, train_in_memory
from mnar.own_data.inputs import samples_of
from mnar.own_data.inspection import Estimate, Inspection, inspect_data
from mnar.own_data.inspection.label_shift import AtRandomTest
from mnar.own_data.portfolio import Choice, Objective, fit_portfolio, members_for
from mnar.own_data.portfolio.members import NAMES, named_member
from mnar.own_data.portfolio.network import without_samples
from mnar.own_data.portfolio_model import PortfolioModel
from mnar.own_data.portfolio_option_checks import check_portfolio_options
from mnar.recipes import configure
from mnar.sklearn_api.partial_labels import class_codes, labeled_accuracy
from mnar.types import DataSet

MOST_CELLS = 10**8  # largest size of a sparse matrix that is made dense: 800 MB
UNKNOWN = Estimate(np.nan, np.nan, np.nan)
NUMERIC_CHECKS: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": "allow-nan"}


class MNARClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for rows of which only some have a label, even if labels are missing not at random.

    By default `fit` tries several kinds of classifiers, with and without the rows that have no label, and combines the
    best by cross-validation (docs/portfolio.md). `learner` names a single one.

    `fit(X, y)` takes X as a table of numbers (NaN for a missing number; a sparse matrix is made dense), as a DataFrame
    with columns of any kind, or as images, uint8 [n, h, w] or [n, h, w, c]. In y, the value `unlabeled`, None, NaN,
    empty text and "?" mean "no label". Other texts, also "none", are classes. If -1 is one of your classes, choose
    another `unlabeled`, such as None. If every row has a label, training is plain supervised learning.

    `score` leaves out rows without a label, with a warning. Metrics of scikit-learn (`scoring="accuracy"`) cannot do so
    and count such rows as errors. Cross-validate with `cv=LabeledOnlyKFold()`, which tests labelled rows only.

    learner              "auto": several kinds are tried; the name of a member of the portfolio, e.g. "kernel"; or the
                         name of a learner, as listed by `mnar list`, which trains one network
    guidance             the guidance of a network, as listed by `mnar list`; "auto": suitable for the kind of data. If
                         only the learner is named, the guidance is that of the learner's own paper.
    iterations           number of training steps of a network; None: a number suitable for the kind of data
    unlabeled            the value in y that means "no label"
    backbone             an nn.Module, of which a copy is trained, or a function that returns a new nn.Module. Its
                         outputs are the features of the classifier. None: a network suitable for the kind of data
    settings             further options, written as for `mnar train --set`: ["learner.threshold=0.9"]
    random_state         an int gives the same model at every fit; the global random states of numpy and torch do not
                         change
    device               of a network, "cpu" or "cuda"; "auto": a GPU for images if the machine has one
    objective            what predictions maximise: "balanced_accuracy" (every class counts the same, and so
                         `predict_proba` gives probabilities as if all classes were equally frequent) or "accuracy" on
                         rows like those without a label
    fast                 whether to try only two quick members
    minutes              time limit for trying members; None: no limit
    verbose              whether to print the loss at each evaluation

    Attributes of a fitted classifier:

    classes_                 the classes
    choice_                  what was tried, what was chosen and why (`choice_.reason`, `choice_.comparison`); None if a
                             single network was trained
    transduction_            the class of every training row: the given label, or the predicted class
    class_prior_             estimated share of each class among the unlabelled rows
    class_prior_interval_    its 95 % interval
    label_propensity_        estimated share of the rows of each class that have a label
    mnar_test_               result of the test whether labels are missing at random

    The last four are computed at first use, because they need a cross-validation. A value that cannot be estimated for
    a class is NaN.
    """

    def __init__(
        self,
        learner: str = "auto",
        guidance: str = "auto",
        *,
        iterations: int | None = None,
        unlabeled: object = -1,
        backbone: NetworkOrFactory | None = None,
        settings: Sequence[str] = (),
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        objective: Objective = "balanced_accuracy",
        fast: bool = False,
        minutes: float | None = None,
        verbose: bool = False,
    ) -> None:
        self.learner, self.guidance, self.iterations, self.unlabeled = learner, guidance, iterations, unlabeled
        self.backbone = backbone
        self.settings, self.random_state, self.device, self.verbose = settings, random_state, device, verbose
        self.objective, self.fast, self.minutes = objective, fast, minutes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train on all rows of X, of which y labels some; the docstring of the class describes X and y."""
        if y is None:
            raise ValueError("MNARClassifier requires y to be passed, but the target y is None")
        x, notes = self._training_inputs(X)
        self.classes_, codes = class_codes(y, self.unlabeled)
        check_consistent_length(x, codes)
        row_names = [f"row {row}" for row in range(len(codes))]
        training = PartlyLabeled(x, codes, tuple(map(str, self.classes_)), row_names, tuple(notes))
        self._training_data: PartlyLabeled | None = training  # kept until the inspection at first use
        self._cached_inspection: Inspection | None = None
        for note in notes:
            warnings.warn(note, stacklevel=2)
        data = as_data_set(training, held_out=0.0)
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self._data_without_samples = without_samples(data)
        self._portfolio: PortfolioModel | None = None
        self.choice_: Choice | None = None
        if self._uses_portfolio:
            self._portfolio = self._fit_portfolio(data)
            self.choice_ = self._portfolio.portfolio.choice
        else:
            self._fit_network(data)
        predicted = self._probs(data.train_x.numpy()).argmax(1)
        self.transduction_ = self.classes_[np.where(training.is_labeled, codes, predicted)]
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row."""
        probs = self.predict_proba(X)
        predicted: npt.NDArray[Any] = self.classes_[probs.argmax(1)]
        return predicted

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class for each row, [n, k], in the order of `classes_`."""
        check_is_fitted(self)
        return self._probs(self._encoded(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on the rows that have a label; rows without one are left out with a warning."""
        return labeled_accuracy(self, X, y, self.unlabeled, sample_weight)

    @property
    def class_prior_(self) -> npt.NDArray[np.float64]:
        """Estimated share of each class among the unlabelled rows, [k]."""
        return np.array([share.value for share in self._class_estimates("pool_share")])

    @property
    def class_prior_interval_(self) -> npt.NDArray[np.float64]:
        """Low and high end of the 95 % interval of each entry of `class_prior_`, [k, 2]."""
        return np.array([(share.low, share.high) for share in self._class_estimates("pool_share")])

    @property
    def label_propensity_(self) -> npt.NDArray[np.float64]:
        """Estimated share of the rows of each class that have a label, [k]."""
        return np.array([1 / one_in.value for one_in in self._class_estimates("labeled_one_in")])

    @property
    def mnar_test_(self) -> AtRandomTest:
        """Result of the test whether labels are missing at random: p_value, statistic and assumptions."""
        if self._inspection.at_random is None:
            raise AttributeError(" ".join(self._inspection.cannot_tell))
        return self._inspection.at_random

    def _class_estimates(self, field: Literal["pool_share", "labeled_one_in"]) -> list[Estimate]:
        """Return this estimate for each class, in the order of `classes_`."""
        estimates: list[Estimate | None] = [getattr(findings, field) for findings in self._inspection.classes]
        if not any(estimates):
            raise AttributeError(" ".join(self._inspection.cannot_tell))
        return [estimate or UNKNOWN for estimate in estimates]

    @property
    def _inspection(self) -> Inspection:
        """The inspection of the training data. The first use computes it and drops the training data."""
        check_is_fitted(self)
        if self._training_data is not None:
            self._cached_inspection = inspect_data(self._training_data, seed=self._seed)
            self._training_data = None
        assert self._cached_inspection is not None
        return self._cached_inspection

    def _training_inputs(self, X: Any) -> tuple[npt.NDArray[Any] | Table, list[str]]:
        """Return images or a table, and notes about columns that are left out."""
        if _is_image_array(X):
            images = image_samples(X, "X")
            self.n_features_in_ = prod(images.shape[1:])
            return images, []
        if _has_mixed_columns(X):
            validate_data(self, X, skip_check_array=True)
            return features_of(X)
        return _table_of_numbers(validate_data(self, X, ensure_min_samples=2, **NUMERIC_CHECKS)), []

    def _encoded(self, X: Any) -> npt.NDArray[Any]:
        """Return the rows to predict in the form that the model takes."""
        if self._data_without_samples.encoding is None:
            images, shape = image_samples(np.asarray(X), "X"), tuple(self._data_without_samples.train_x.shape[1:])
            if images.shape[1:] != shape:
                raise ValueError(
                    f"X has images of shape {images.shape[1:]}, but the model was fitted to images of shape {shape}; "
                    "resize the images"
                )
            return images
        encoder = TableEncoder.from_dict(self._data_without_samples.encoding)
        if encoder.schema.numeric_names == unnamed_columns(self.n_features_in_):
            return encoder.transform(_table_of_numbers(validate_data(self, X, reset=False, **NUMERIC_CHECKS)))
        if not hasattr(X, "columns"):
            raise ValueError(
                f"X is of type {type(X).__name__}, but the model was fitted to a DataFrame; "
                "give a DataFrame with the same columns"
            )
        validate_data(self, X, reset=False, skip_check_array=True)
        return encoder.transform(features_like(X, encoder.schema))

    @property
    def _uses_portfolio(self) -> bool:
        """Whether several classifiers are tried. An option that only a network has asks for one network."""
        is_member = self.learner in ("auto", *NAMES)
        return is_member and self.guidance == "auto" and self.backbone is None and not self.settings

    def _fit_portfolio(self, data: DataSet) -> PortfolioModel:
        check_portfolio_options(self.objective, self.minutes, self.iterations)
        samples, encoder = samples_of(data, self._seed)
        members = members_for(samples, fast=self.fast, every=self.learner != "auto", iterations=self.iterations)
        if self.learner != "auto":
            members = (named_member(self.learner, members),)
        seconds = np.inf if self.minutes is None else 60 * self.minutes
        portfolio = fit_portfolio(samples, members, objective=self.objective, seconds=seconds)
        if self.verbose and portfolio.choice is not None:
            print(portfolio.choice.reason, flush=True)
        return PortfolioModel(portfolio, encoder)

    def _fit_network(self, data: DataSet) -> None:
        self._config = self._configure(data)
        with keep_random_state(self._config):
            weights = train_in_memory(self._config, data, self.backbone, verbose=self.verbose).state_dict()
        # Keep only what prediction needs: no weights of the heads that only training uses.
        self._weights = {name: weights[name].cpu().numpy() for name in weights if not name.startswith("heads.")}

    def _configure(self, data: DataSet) -> RunConfig:
        num_unlabeled = int((data.train_y == UNLABELED).sum())
        if self.learner not in ("auto", *names_of("learner")):
            known = sorted({"auto", *NAMES, *names_of("learner")})
            raise ValueError(f"unknown learner {self.learner!r}; choose from {known}")
        learner, guidance = (None if name == "auto" else name for name in (self.learner, self.guidance))
        if num_unlabeled == 0 and (learner or guidance):
            warnings.warn(
                "every row has a label, so the model is trained by plain supervised learning; "
                "`learner` and `guidance` are ignored",
                stacklevel=3,
            )
            learner = guidance = None
        defaults = default_sections(
            tuple(data.train_x.shape[1:]),
            num_unlabeled,
            on_gpu=torch.cuda.is_available() if self.device == "auto" else self.device.startswith("cuda"),
            iterations=self.iterations,
        )
        if self.backbone is not None:
            # The thresholds of the collapse detector hold for our networks. A user's network may start more slowly.
            defaults["train"]["collapse"] = "warn"
        return configure(
            dataset=OWN_DATA,
            protocol="as_labeled",
            learner=learner,
            guidance=guidance,
            iterations=self.iterations,
            seed=self._seed,
            settings=[*([] if self.device == "auto" else [f"engine.device={self.device}"]), *self.settings],
            defaults=defaults,
        )

    def _probs(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the predicted class probabilities of encoded rows, [n, k]."""
        if self._portfolio is not None:
            return self._portfolio.predict(x).decisive_probs
        assert self._config is not None
        return network_probs(
            self._config, self._data_without_samples, self._weights, torch.from_numpy(x), self.backbone
        )


def _is_image_array(X: Any) -> bool:
    """Return whether X is an array of images: uint8 with more than two dimensions."""
    return isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim > 2


def _has_mixed_columns(X: Any) -> bool:
    """Return whether X is a DataFrame that has columns other than numbers."""
    return hasattr(X, "columns") and any(getattr(dtype, "kind", "O") not in "biuf" for dtype in X.dtypes)


def _table_of_numbers(X: Any) -> Table:
    """Return a table of numbers from a dense or sparse matrix."""
    if not isinstance(X, np.ndarray):
        if prod(X.shape) > MOST_CELLS:
            raise ValueError(
                f"X is sparse, and as a dense array it would have {prod(X.shape):,} cells; at most {MOST_CELLS:,} are "
                "allowed. Reduce the number of columns, e.g. with TruncatedSVD"
            )
        X = X.toarray()
    return Table.of_numbers(X)
