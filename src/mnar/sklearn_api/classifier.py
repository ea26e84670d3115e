"""MNARClassifier: training on half-labelled data as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from mnar.config import OWN_DATA, RunConfig
from mnar.datasets.npz_file import samples
from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table, unnamed_columns
from mnar.datasets.user_files.table import features_like, features_of
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.models import Classifier, NetworkOrFactory
from mnar.own_data.defaults import default_sections
from mnar.own_data.inspection import Estimate, Inspection, inspect_data
from mnar.own_data.inspection.label_shift import AtRandomTest
from mnar.recipes import configure
from mnar.run.assemble import make_augment, make_model, make_split, make_trainer, pretraining_config
from mnar.sklearn_api.labeled_folds import split_labels
from mnar.training.engine import Engine
from mnar.training.evaluation import BATCH
from mnar.training.meters import Diverged
from mnar.training.trainer import train
from mnar.types import DataSet, Selection, Split

MOST_CELLS = 10**8  # of a sparse matrix made dense: 800 MB
UNKNOWN = Estimate(np.nan, np.nan, np.nan)
NUMBERS: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": "allow-nan"}


class MNARClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network trained on rows of which some have a label, perhaps not those that chance would have chosen.

    `fit(X, y)`: X is a table of numbers (NaN where one is missing; sparse is made dense), a DataFrame with columns of
    any kind, or images as uint8 [n, h, w] or [n, h, w, c]. In y, `unlabeled`, None, NaN, empty text and "?" mean
    "no label"; other texts, "none" too, are classes. Where -1 is a class, give another `unlabeled`, such as None. If
    every row has a label, this is plain supervised learning.

    learner, guidance    by name, as `mnar list` has them; "auto": what suits the kind of data. A learner named alone is
                         guided as its own paper has it.
    iterations           training steps; None: enough for the kind of data
    backbone             an nn.Module, of which a copy is trained, or a function that makes one: its output are the
                         features of the classifier; None: a network that suits the kind of data
    settings             further options, as `mnar train --set` takes them: ["learner.threshold=0.9"]
    random_state         an int gives the same model each time; the random states of numpy and torch are left alone
    device               "cpu" or "cuda"; "auto": a GPU for images, where there is one

    After fitting: classes_; transduction_, the class of every row, as given or as predicted; and on request, since a
    classifier has to be cross-fitted first, class_prior_, the share of each class among the unlabelled rows,
    class_prior_interval_ (95 %), label_propensity_, the share of each class that is labelled, and mnar_test_, the test
    of "labels are missing at random". NaN stands for what cannot be told of a class.
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
        verbose: bool = False,
    ) -> None:
        self.learner, self.guidance, self.iterations, self.unlabeled = learner, guidance, iterations, unlabeled
        self.backbone = backbone
        self.settings, self.random_state, self.device, self.verbose = settings, random_state, device, verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        if y is None:
            raise ValueError("MNARClassifier requires y to be passed, but the target y is None")
        x, notes = self._new_inputs(X)
        codes = self._codes(y)
        check_consistent_length(x, codes)
        row_names = [f"row {row}" for row in range(len(codes))]
        training = PartlyLabeled(x, codes, tuple(map(str, self.classes_)), row_names, tuple(notes))
        self._training: PartlyLabeled | None = training
        self._found: Inspection | None = None
        for note in notes:
            warnings.warn(note, stacklevel=2)
        data = as_data_set(training, held_out=0.0)
        self._config = self._configure(data)
        with _own_randomness(self._config):
            weights = _trained(self._config, data, self.backbone, verbose=self.verbose).state_dict()
        # What predicting needs: the network without the heads that were there to train with, and no sample.
        self._weights = {name: weights[name].cpu().numpy() for name in weights if not name.startswith("heads.")}
        self._outline = data._replace(
            train_x=data.train_x[:0].clone(),
            train_y=data.train_y[:0].clone(),
            test_x=data.test_x[:0].clone(),
            row_names=(),
        )
        predicted = self._probs(data.train_x).argmax(1)
        self.transduction_ = self.classes_[np.where(training.is_labeled, codes, predicted)]
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        probs = self.predict_proba(X)
        predicted: npt.NDArray[Any] = self.classes_[probs.argmax(1)]
        return predicted

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self)
        return self._probs(torch.from_numpy(self._encoded(X)))

    @property
    def class_prior_(self) -> npt.NDArray[np.float64]:
        """[k] the share of each class among the unlabelled rows."""
        return np.array([share.value for share in self._told("pool_share")])

    @property
    def class_prior_interval_(self) -> npt.NDArray[np.float64]:
        """[k, 2] its ends, with 95 % confidence."""
        return np.array([(share.low, share.high) for share in self._told("pool_share")])

    @property
    def label_propensity_(self) -> npt.NDArray[np.float64]:
        """[k] the share of each class, among all rows, that has a label."""
        return np.array([1 / one_in.value for one_in in self._told("labeled_one_in")])

    @property
    def mnar_test_(self) -> AtRandomTest:
        """Of "labels are missing at random": p_value, statistic and assumptions."""
        if self._inspection.at_random is None:
            raise AttributeError(" ".join(self._inspection.cannot_tell))
        return self._inspection.at_random

    def _told(self, what: Literal["pool_share", "labeled_one_in"]) -> list[Estimate]:
        """Of each class, in the order of classes_."""
        estimates: list[Estimate | None] = [getattr(found, what) for found in self._inspection.classes]
        if not any(estimates):
            raise AttributeError(" ".join(self._inspection.cannot_tell))
        return [estimate or UNKNOWN for estimate in estimates]

    @property
    def _inspection(self) -> Inspection:
        check_is_fitted(self)
        if self._training is not None:
            self._found, self._training = inspect_data(self._training, seed=self._config.seed), None
        assert self._found is not None
        return self._found

    def _new_inputs(self, X: Any) -> tuple[npt.NDArray[Any] | Table, list[str]]:
        """Images or a table, and notes on columns left out."""
        if _is_image_array(X):
            images = samples(X, "X")
            self.n_features_in_ = prod(images.shape[1:])
            return images, []
        if _has_mixed_columns(X):
            validate_data(self, X, skip_check_array=True)
            return features_of(X)
        return _numbers(validate_data(self, X, ensure_min_samples=2, **NUMBERS)), []

    def _encoded(self, X: Any) -> npt.NDArray[Any]:
        """New rows as the network takes them."""
        if self._outline.encoding is None:
            images, shape = samples(np.asarray(X), "X"), tuple(self._outline.train_x.shape[1:])
            if images.shape[1:] != shape:
                raise ValueError(f"X has images of shape {images.shape[1:]}, and {shape} was fitted; resize them")
            return images
        encoder = TableEncoder.from_dict(self._outline.encoding)
        if encoder.schema.numeric_names == unnamed_columns(self.n_features_in_):
            return encoder.transform(_numbers(validate_data(self, X, reset=False, **NUMBERS)))
        if not hasattr(X, "columns"):
            raise ValueError(f"X is {type(X).__name__}, and a DataFrame was fitted; give one with the same columns")
        validate_data(self, X, reset=False, skip_check_array=True)
        return encoder.transform(features_like(X, encoder.schema))

    def _codes(self, y: Any) -> npt.NDArray[np.int64]:
        """The number of each row's class, UNLABELED where it has none."""
        is_labeled, labels = split_labels(column_or_1d(y, warn=True), self.unlabeled)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            found = f"every label is of class {self.classes_.tolist()[0]!r}" if len(labels) else "no row has a label"
            raise ValueError(
                f"{found}, and {(~is_labeled).sum()} of {len(is_labeled)} rows have none; label some of two classes or "
                f"more. If {self.unlabeled!r} is a class, choose another `unlabeled`, such as None"
            )
        codes = np.full(len(is_labeled), UNLABELED, np.int64)
        codes[is_labeled] = numbers
        return codes

    def _configure(self, data: DataSet) -> RunConfig:
        num_unlabeled = int((data.train_y == UNLABELED).sum())
        learner, guidance = (None if name == "auto" else name for name in (self.learner, self.guidance))
        if num_unlabeled == 0 and (learner or guidance):
            warnings.warn("every row has a label, so this is plain supervised learning", stacklevel=3)
            learner = guidance = None
        return configure(
            dataset=OWN_DATA,
            protocol="as_labeled",
            learner=learner,
            guidance=guidance,
            iterations=self.iterations,
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            settings=[*([] if self.device == "auto" else [f"engine.device={self.device}"]), *self.settings],
            defaults=default_sections(
                tuple(data.train_x.shape[1:]),
                num_unlabeled,
                on_gpu=torch.cuda.is_available() if self.device == "auto" else self.device.startswith("cuda"),
                iterations=self.iterations,
            ),
        )

    @torch.no_grad()
    def _probs(self, x: Tensor) -> npt.NDArray[np.float64]:
        device = Engine(self._config.engine).device
        with _own_randomness(self._config):  # a new network begins at random
            model = make_model(self._config, self._outline, self.backbone)
        model.load_state_dict({name: torch.from_numpy(weight) for name, weight in self._weights.items()})
        # In double precision a prediction does not depend on the rows beside it; for images that would take long.
        dtype = torch.float32 if self._outline.is_image else torch.float64
        model = model.to(device, dtype).eval()
        prepare = make_augment(self._config, self._outline).to(device)
        logits = [model(prepare(rows.to(device), "id").to(dtype)).double() for rows in x.split(BATCH)]
        probs: npt.NDArray[np.float64] = torch.cat(logits).softmax(1).cpu().numpy()
        return probs


def _trained(config: RunConfig, data: DataSet, backbone: NetworkOrFactory | None, *, verbose: bool) -> Classifier:
    if bool((data.train_y == UNLABELED).any()):
        rows = make_split(config, data)
    else:
        everyone = np.arange(len(data.train_y))
        rows = Split(everyone, everyone)
    trainer = make_trainer(config, data, rows, backbone)
    if trainer.learner.pretrained_by is not None:
        if config.learner.options["encoder"]:
            raise ValueError("learner.encoder names a run to take it from, which fit has none of; leave it out")
        stage = make_trainer(pretraining_config(config, trainer.loader.num_unlabeled), data, rows)
        train(stage, PrintingRecorder("pretraining", verbose=verbose))
        trainer.load_encoder(stage.evaluated_model().state_dict())
    try:
        train(trainer, PrintingRecorder("training", verbose=verbose))
    except Diverged as error:
        raise Diverged(f"{error}; choose a lower learning rate, e.g. settings=['train.lr=0.0003']") from error
    return trainer.evaluated_model()


class PrintingRecorder:
    """A `train.Recorder` that keeps nothing."""

    stop_requested = False

    def __init__(self, stage: str, *, verbose: bool) -> None:
        self.stage, self.verbose = stage, verbose

    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None: ...
    def generation(self, number: int, selection: Selection | None) -> None: ...
    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None: ...

    def evaluation(self, line: dict[str, Any]) -> None:
        if self.verbose:
            print(f"{self.stage}, step {line['step']:,}: loss {line['train']['loss']:.4f}", flush=True)


@contextmanager
def _own_randomness(config: RunConfig) -> Iterator[None]:
    """What is drawn inside leaves the random state of torch as it was."""
    device = Engine(config.engine).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _is_image_array(X: Any) -> bool:
    return isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim > 2


def _has_mixed_columns(X: Any) -> bool:
    """Whether X is a DataFrame with columns that are not numbers."""
    return hasattr(X, "columns") and any(getattr(dtype, "kind", "O") not in "biuf" for dtype in X.dtypes)


def _numbers(X: Any) -> Table:
    if not isinstance(X, np.ndarray):
        if prod(X.shape) > MOST_CELLS:
            raise ValueError(
                f"X is sparse, and dense it would have {prod(X.shape):,} cells; at most {MOST_CELLS:,} are allowed: "
                "choose fewer columns, e.g. by TruncatedSVD"
            )
        X = X.toarray()
    return Table.of_numbers(X)
