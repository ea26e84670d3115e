"""`MNARClassifier`: a scikit-learn estimator that trains on half-labelled data."""

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

MOST_CELLS = 10**8  # largest size of a sparse matrix that is made dense: 800 MB
UNKNOWN = Estimate(np.nan, np.nan, np.nan)
NUMERIC_CHECKS: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": "allow-nan"}


class MNARClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network for rows of which only some have a label, even if labels are missing not at random.

    `fit(X, y)` takes X as a table of numbers (NaN for a missing number; a sparse matrix is made dense), as a DataFrame
    with columns of any kind, or as images, uint8 [n, h, w] or [n, h, w, c]. In y, the value `unlabeled`, None, NaN,
    empty text and "?" mean "no label". Other texts, also "none", are classes. If -1 is one of your classes, choose
    another `unlabeled`, such as None. If every row has a label, training is plain supervised learning.

    learner, guidance    names as listed by `mnar list`; "auto": suitable for the kind of data. If only the learner is
                         named, the guidance is that of the learner's own paper.
    iterations           number of training steps; None: a number suitable for the kind of data
    unlabeled            the value in y that means "no label"
    backbone             an nn.Module, of which a copy is trained, or a function that returns a new nn.Module. Its
                         outputs are the features of the classifier. None: a network suitable for the kind of data
    settings             further options, written as for `mnar train --set`: ["learner.threshold=0.9"]
    random_state         an int gives the same model at every fit; the global random states of numpy and torch do not
                         change
    device               "cpu" or "cuda"; "auto": a GPU for images if the machine has one
    verbose              whether to print the loss at each evaluation

    Attributes of a fitted classifier:

    classes_                 the classes
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
        """Train on all rows of X, of which y labels some; the docstring of the class describes X and y."""
        if y is None:
            raise ValueError("MNARClassifier requires y to be passed, but the target y is None")
        x, notes = self._training_inputs(X)
        codes = self._class_codes(y)
        check_consistent_length(x, codes)
        row_names = [f"row {row}" for row in range(len(codes))]
        training = PartlyLabeled(x, codes, tuple(map(str, self.classes_)), row_names, tuple(notes))
        self._training_data: PartlyLabeled | None = training  # kept until the inspection at first use
        self._cached_inspection: Inspection | None = None
        for note in notes:
            warnings.warn(note, stacklevel=2)
        data = as_data_set(training, held_out=0.0)
        self._config = self._configure(data)
        with _keep_torch_random_state(self._config):
            weights = _train_model(self._config, data, self.backbone, verbose=self.verbose).state_dict()
        # Keep only what prediction needs: no samples, and no weights of the heads that only training uses.
        self._weights = {name: weights[name].cpu().numpy() for name in weights if not name.startswith("heads.")}
        self._data_without_samples = data._replace(
            train_x=data.train_x[:0].clone(),
            train_y=data.train_y[:0].clone(),
            test_x=data.test_x[:0].clone(),
            test_y=data.test_y[:0].clone(),
            row_names=(),
        )
        predicted = self._probs(data.train_x).argmax(1)
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
        return self._probs(torch.from_numpy(self._network_inputs(X)))

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
            self._cached_inspection = inspect_data(self._training_data, seed=self._config.seed)
            self._training_data = None
        assert self._cached_inspection is not None
        return self._cached_inspection

    def _training_inputs(self, X: Any) -> tuple[npt.NDArray[Any] | Table, list[str]]:
        """Return images or a table, and notes about columns that are left out."""
        if _is_image_array(X):
            images = samples(X, "X")
            self.n_features_in_ = prod(images.shape[1:])
            return images, []
        if _has_mixed_columns(X):
            validate_data(self, X, skip_check_array=True)
            return features_of(X)
        return _table_of_numbers(validate_data(self, X, ensure_min_samples=2, **NUMERIC_CHECKS)), []

    def _network_inputs(self, X: Any) -> npt.NDArray[Any]:
        """Return the rows to predict in the form that the network takes."""
        if self._data_without_samples.encoding is None:
            images, shape = samples(np.asarray(X), "X"), tuple(self._data_without_samples.train_x.shape[1:])
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

    def _class_codes(self, y: Any) -> npt.NDArray[np.int64]:
        """Set `classes_`, and return the position of each row's class in it; UNLABELED for a row without a label."""
        is_labeled, labels = split_labels(column_or_1d(y, warn=True), self.unlabeled)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            problem = f"every label is of class {self.classes_.tolist()[0]!r}" if len(labels) else "no row has a label"
            raise ValueError(
                f"{problem}, and {(~is_labeled).sum()} of {len(is_labeled)} rows are unlabelled; label rows of at "
                f"least two classes. If {self.unlabeled!r} is a class, choose another `unlabeled`, such as None"
            )
        codes = np.full(len(is_labeled), UNLABELED, np.int64)
        codes[is_labeled] = numbers
        return codes

    def _configure(self, data: DataSet) -> RunConfig:
        num_unlabeled = int((data.train_y == UNLABELED).sum())
        learner, guidance = (None if name == "auto" else name for name in (self.learner, self.guidance))
        if num_unlabeled == 0 and (learner or guidance):
            warnings.warn(
                "every row has a label, so the model is trained by plain supervised learning; "
                "`learner` and `guidance` are ignored",
                stacklevel=3,
            )
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
        """Return the predicted class probabilities of encoded rows, [n, k]."""
        device = Engine(self._config.engine).device
        with _keep_torch_random_state(self._config):  # building a network draws random weights
            model = make_model(self._config, self._data_without_samples, self.backbone)
        model.load_state_dict({name: torch.from_numpy(weight) for name, weight in self._weights.items()})
        # In double precision a prediction does not depend on the other rows of its batch. For images this is too slow.
        dtype = torch.float32 if self._data_without_samples.is_image else torch.float64
        model = model.to(device, dtype).eval()
        prepare = make_augment(self._config, self._data_without_samples).to(device)
        logits = [model(prepare(rows.to(device), "id").to(dtype)).double() for rows in x.split(BATCH)]
        probs: npt.NDArray[np.float64] = torch.cat(logits).softmax(1).cpu().numpy()
        return probs


def _train_model(config: RunConfig, data: DataSet, backbone: NetworkOrFactory | None, *, verbose: bool) -> Classifier:
    """Train a model, and first its encoder if the learner needs a pretrained one. Nothing is written to disk."""
    if bool((data.train_y == UNLABELED).any()):
        rows = make_split(config, data)
    else:
        all_rows = np.arange(len(data.train_y))
        rows = Split(all_rows, all_rows)
    trainer = make_trainer(config, data, rows, backbone)
    if trainer.learner.pretrained_by is not None:
        if config.learner.options["encoder"]:
            raise ValueError(
                f"learner.encoder is {str(config.learner.options['encoder'])!r}, but `fit` pretrains the encoder "
                "itself and loads none from a run folder; leave the option out of `settings`"
            )
        stage = make_trainer(pretraining_config(config, trainer.loader.num_unlabeled), data, rows)
        train(stage, PrintingRecorder("pretraining", verbose=verbose))
        trainer.load_encoder(stage.evaluated_model().state_dict())
    try:
        train(trainer, PrintingRecorder("training", verbose=verbose))
    except Diverged as error:
        raise Diverged(f"{error}; choose a lower learning rate, e.g. settings=['train.lr=0.0003']") from error
    return trainer.evaluated_model()


class PrintingRecorder:
    """A `trainer.Recorder` that writes nothing to disk; with `verbose` it prints the loss at each evaluation."""

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
def _keep_torch_random_state(config: RunConfig) -> Iterator[None]:
    """Restore torch's global random state at the end of the `with` block."""
    device = Engine(config.engine).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


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
