"""Inspect half-labelled data: estimate which classes the unlabelled rows belong to, and recommend a method.

A quick classifier, the probe, is trained on the labels by cross-validation. Its predictions for labelled rows that it
was not trained on, compared with its predictions for the unlabelled rows, show the class distribution of the unlabelled
rows (label_shift.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data.inspection.image_probe import patch_features
from mnar.own_data.inspection.label_shift import AtRandomTest, Interval, missing_at_random_test, pool_shares
from mnar.own_data.inspection.probe import OutOfFold, gradient_boosting, out_of_fold
from mnar.own_data.inspection.recommend import Kind, Recommendation, recommend
from mnar.types import OnProgress

NUM_FOLDS = 5
NUM_STEPS = NUM_FOLDS + 3  # progress: features, one model per fold, class shares, the test
# Rows that the inspection uses at most. A random sample of 50,000 rows gives a share to within 0.4 %, 20,000 rows to
# within 0.7 % (95 % confidence). Images have the lower limit because their features take longer to compute.
MOST_ROWS = {"table": 50_000, "features": 50_000, "images": 20_000}
# Limit of pool rows × classes, because boosting grows one tree per class: with 100 classes, at most 50,000 pool rows.
MOST_PREDICTIONS = 5_000_000
MOST_FEATURES_OF_TREES = 64  # image and other array features beyond this number get a logistic regression as probe


@dataclass(frozen=True)
class Estimate:
    """An estimated number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassFindings:
    """Findings about one class."""

    name: str
    num_labels: int
    labeled_share: float  # share of the labels
    pool_share: Estimate | None  # share of the unlabelled rows, by EM; None: cannot be estimated
    pool_share_bbse: Estimate | None  # the same share by BBSE, given only if the two methods disagree
    labeled_one_in: Estimate | None  # rows of the class in all data, per label of the class


@dataclass(frozen=True)
class ProbeFindings:
    """How well the probe predicts labelled rows that it was not trained on."""

    model: str
    accuracy: float
    balanced_accuracy: float  # mean recall of the classes that have labels


@dataclass(frozen=True)
class Inspection:
    """All findings of an inspection. Findings that the data cannot give are None."""

    kind: Kind
    num_labeled: int
    num_unlabeled: int
    classes: tuple[ClassFindings, ...]
    never_labeled: tuple[str, ...]
    probe: ProbeFindings | None
    at_random: AtRandomTest | None
    recommendation: Recommendation | None
    cannot_tell: tuple[str, ...]  # sentences that explain which findings are None, and why
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of inspect.json."""
        return {**asdict(self), "at_random": self.at_random and self.at_random._asdict()}


class _ProbeResults(NamedTuple):
    """What the predictions of the probe show; None where there is no result."""

    probe: ProbeFindings | None = None
    em: Interval | None = None
    bbse: Interval | None = None  # given only if it disagrees with `em`
    at_random: AtRandomTest | None = None


def inspect_data(data: PartlyLabeled, *, seed: int = 0, progress: OnProgress | None = None) -> Inspection:
    """Inspect half-labelled data. With too few labels for an estimate, the result says so; this is never an error."""
    num_labels = np.bincount(data.y[data.is_labeled], minlength=len(data.class_names))
    num_labeled = int(num_labels.sum())
    num_unlabeled = len(data.y) - num_labeled
    never_labeled = tuple(name for name, count in zip(data.class_names, num_labels, strict=True) if count == 0)
    cannot_tell, notes = list[str](), list(data.notes)

    results = _ProbeResults()
    if len(data.class_names) - len(never_labeled) < 2:
        cannot_tell.append(
            "Fewer than two classes have labels, so no classifier can be trained and nothing can be estimated. "
            "Label some rows of another class."
        )
    else:
        results = _run_probe(data, seed, progress or (lambda done, total: None), cannot_tell, notes)
    if never_labeled and results.em is not None:
        cannot_tell.append(
            f"Classes without a label: {_first_names(never_labeled)}. Their shares of the pool cannot be estimated, "
            "and the shares of the other classes are shares of the rest of the pool. No method can learn a class "
            "without a label, so label a few rows of each."
        )

    classes = tuple(
        _class_findings(c, name, num_labels, num_unlabeled, results) for c, name in enumerate(data.class_names)
    )
    recommendation = None
    if results.probe is not None:
        shares = [c.pool_share.value if c.pool_share else None for c in classes] if num_unlabeled else None
        p_value = results.at_random.p_value if results.at_random else None
        recommendation = recommend(data.kind, num_labels.tolist(), shares, p_value)
    return Inspection(
        kind=data.kind,
        num_labeled=num_labeled,
        num_unlabeled=num_unlabeled,
        classes=classes,
        never_labeled=never_labeled,
        probe=results.probe,
        at_random=results.at_random,
        recommendation=recommendation,
        cannot_tell=tuple(cannot_tell),
        notes=tuple(notes),
    )


def _run_probe(
    data: PartlyLabeled, seed: int, report: OnProgress, cannot_tell: list[str], notes: list[str]
) -> _ProbeResults:
    """Train the probe, then estimate and test. Adds to `cannot_tell` what has no result, and remarks to `notes`."""
    rng = np.random.default_rng(seed)
    most = MOST_ROWS[data.kind]
    labeled = _noted_sample(np.flatnonzero(data.is_labeled), most, "labelled", rng, notes, data.y)
    most = min(most, MOST_PREDICTIONS // len(data.class_names))
    pool = _noted_sample(np.flatnonzero(~data.is_labeled), most, "unlabelled", rng, notes)
    y = data.y[labeled]
    predictions, model = _out_of_fold_predictions(data, labeled, pool, seed, report)
    probe = _probe_findings(predictions, y, model)
    if len(pool) == 0:
        cannot_tell.append("Every row has a label, so there is no pool whose class shares could be estimated.")
        return _ProbeResults(probe)

    report(NUM_STEPS - 2, NUM_STEPS)
    em, bbse, disagree = pool_shares(predictions, y, seed=seed)
    report(NUM_STEPS - 1, NUM_STEPS)
    at_random, num_folds = None, len(predictions.probs_pool)
    if np.bincount(y).max() >= num_folds:
        at_random = missing_at_random_test(predictions, y, seed=seed)
    else:
        cannot_tell.append(
            f"Whether labels are missing at random cannot be tested, because no class has {num_folds} labels. "
            "Label more rows."
        )
    report(NUM_STEPS, NUM_STEPS)
    return _ProbeResults(probe, em, bbse if disagree else None, at_random)


def _noted_sample(
    rows: npt.NDArray[np.intp],
    most: int,
    kind: str,
    rng: np.random.Generator,
    notes: list[str],
    y: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.intp]:
    """Draw at most `most` of the rows, and add a note if some are left out. `kind` names the rows in the note."""
    drawn = sample_rows(rows, most, rng, y)
    if len(drawn) < len(rows):
        notes.append(f"the estimates use a random sample of {len(drawn):,} of the {len(rows):,} {kind} rows")
    return drawn


def sample_rows(
    rows: npt.NDArray[np.intp], most: int, rng: np.random.Generator, y: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.intp]:
    """Draw at most `most` of the rows at random.

    With `y`, the sample always has up to NUM_FOLDS rows of each class, so that no class is lost. Apart from these, it
    keeps the class mix of the rows, which the test for missing at random compares with the pool.
    """
    if len(rows) <= most:
        return rows
    shuffled = rng.permutation(rows)
    few = rows[:0]
    if y is not None:
        few = np.concatenate([shuffled[y[shuffled] == c][:NUM_FOLDS] for c in np.unique(y[rows])])
    others = shuffled[~np.isin(shuffled, few)]
    return np.sort(np.concatenate([few, others[: max(0, most - len(few))]]))


def _out_of_fold_predictions(
    data: PartlyLabeled, labeled: npt.NDArray[np.intp], pool: npt.NDArray[np.intp], seed: int, report: OnProgress
) -> tuple[OutOfFold, str]:
    """Return the out-of-fold predictions of the probe, and a description of its model."""
    report(0, NUM_STEPS)
    rows = np.concatenate([labeled, pool])
    x: npt.NDArray[Any]
    is_categorical = None
    if isinstance(data.x, Table):
        table = data.x.rows(rows)
        x, is_categorical = TableEncoder.fit(table).for_trees(table)
    else:
        x = patch_features(data.x, rows, seed=seed) if data.kind == "images" else data.x[rows]
    uses_trees = data.kind == "table" or x.shape[1] <= MOST_FEATURES_OF_TREES
    steps_done = 0

    def make_model() -> Any:
        nonlocal steps_done
        steps_done += 1
        report(steps_done, NUM_STEPS)
        return gradient_boosting(is_categorical, seed) if uses_trees else _logistic_regression()

    predictions = out_of_fold(
        make_model,
        x[: len(labeled)],
        data.y[labeled],
        x[len(labeled) :],
        num_classes=len(data.class_names),
        num_folds=NUM_FOLDS,
        seed=seed,
    )
    model = "gradient boosting" if uses_trees else "logistic regression"
    return predictions, f"{model} on image patches" if data.kind == "images" else model


def _logistic_regression() -> Any:
    """Return an untrained logistic regression with strong regularisation, for data with more features than labels."""
    # imported here because the import takes a second, and most uses of mnar do not need it
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=200))


def _probe_findings(predictions: OutOfFold, y: npt.NDArray[np.int64], model: str) -> ProbeFindings:
    is_right = predictions.probs_labeled.argmax(1) == y
    recalls = [is_right[y == c].mean() for c in np.unique(y)]
    return ProbeFindings(model, float(is_right.mean()), float(np.mean(recalls)))


def _class_findings(
    c: int,
    name: str,
    num_labels: npt.NDArray[np.int64],
    num_unlabeled: int,
    results: _ProbeResults,
) -> ClassFindings:
    count, pool_share = int(num_labels[c]), _estimate(results.em, c)
    one_in = pool_share and Estimate(
        *(1 + share * num_unlabeled / count for share in (pool_share.value, pool_share.low, pool_share.high))
    )
    labeled_share = count / max(1, int(num_labels.sum()))
    return ClassFindings(name, count, labeled_share, pool_share, _estimate(results.bbse, c), one_in)


def _estimate(interval: Interval | None, c: int) -> Estimate | None:
    if interval is None or np.isnan(interval.shares[c]):
        return None
    return Estimate(float(interval.shares[c]), float(interval.low[c]), float(interval.high[c]))


def _first_names(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
