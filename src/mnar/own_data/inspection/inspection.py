"""What half-labelled data say about their missing labels: which classes they are of, how surely, and what to do.

A quick classifier, the probe, is fitted to the labels fold by fold. What it predicts for labelled rows that it has not
seen, beside what it predicts for the unlabelled ones, tells how classes are mixed among the latter (label_shift.py).
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
NUM_STEPS = NUM_FOLDS + 3  # features, a model for each fold, the shares, the test
# So many rows, drawn at random, tell a share to 0.3 % and 0.7 % (95 %); an image costs more to look at.
MOST_ROWS = {"table": 100_000, "features": 100_000, "images": 20_000}
MOST_PREDICTIONS = 5_000_000  # rows × classes: with 100 classes, half as many rows; boosting grows a tree a class
MOST_FEATURES_OF_TREES = 64


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float  # ends of a 95 % interval
    high: float


@dataclass(frozen=True)
class ClassFindings:
    name: str
    num_labels: int
    labeled_share: float  # of the labels
    pool_share: Estimate | None  # of the unlabelled rows, by EM; None: cannot be told
    pool_share_bbse: Estimate | None  # by the other method, where the two disagree
    labeled_one_in: Estimate | None  # rows of this class, in all data, for each label that it has


@dataclass(frozen=True)
class ProbeFindings:
    model: str
    accuracy: float  # on labelled rows that it has not seen
    balanced_accuracy: float  # the mean over the classes that have labels


@dataclass(frozen=True)
class Inspection:
    kind: Kind
    num_labeled: int
    num_unlabeled: int
    classes: tuple[ClassFindings, ...]
    never_labeled: tuple[str, ...]
    probe: ProbeFindings | None
    at_random: AtRandomTest | None
    recommendation: Recommendation | None
    cannot_tell: tuple[str, ...]  # what is None above, and why
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For inspect.json."""
        return {**asdict(self), "at_random": self.at_random and self.at_random._asdict()}


class _Evidence(NamedTuple):
    probe: ProbeFindings | None = None
    em: Interval | None = None
    bbse: Interval | None = None  # where it disagrees
    at_random: AtRandomTest | None = None


def inspect_data(data: PartlyLabeled, *, seed: int = 0, progress: OnProgress | None = None) -> Inspection:
    """What cannot be told from so few labels is left out and said so; nothing here fails for want of labels."""
    num_labels = np.bincount(data.y[data.is_labeled], minlength=len(data.class_names))
    num_labeled = int(num_labels.sum())
    num_unlabeled = len(data.y) - num_labeled
    never_labeled = tuple(name for name, count in zip(data.class_names, num_labels, strict=True) if count == 0)
    cannot_tell, notes = list[str](), list(data.notes)

    evidence = _Evidence()
    if len(data.class_names) - len(never_labeled) < 2:
        cannot_tell.append("Fewer than two classes have labels, so nothing can be told apart: label some of another.")
    else:
        evidence = _gather(data, seed, progress or (lambda done, total: None), cannot_tell, notes)
    if never_labeled and evidence.em is not None:
        cannot_tell.append(
            f"Nobody has labelled {_listed(never_labeled)}. What share of the pool that is cannot be told; the shares "
            "of the other classes are of the rest. No method learns a class without a label, so label a few."
        )

    classes = tuple(
        _class_findings(c, name, num_labels, num_unlabeled, evidence) for c, name in enumerate(data.class_names)
    )
    recommendation = None
    if evidence.probe is not None:
        shares = [c.pool_share.value if c.pool_share else None for c in classes] if num_unlabeled else None
        p_value = evidence.at_random.p_value if evidence.at_random else None
        recommendation = recommend(data.kind, num_labels.tolist(), shares, p_value)
    return Inspection(
        kind=data.kind,
        num_labeled=num_labeled,
        num_unlabeled=num_unlabeled,
        classes=classes,
        never_labeled=never_labeled,
        probe=evidence.probe,
        at_random=evidence.at_random,
        recommendation=recommendation,
        cannot_tell=tuple(cannot_tell),
        notes=tuple(notes),
    )


def _gather(data: PartlyLabeled, seed: int, report: OnProgress, cannot_tell: list[str], notes: list[str]) -> _Evidence:
    rng = np.random.default_rng(seed)
    most = MOST_ROWS[data.kind]
    labeled = _at_most(most, np.flatnonzero(data.is_labeled), "labelled", rng, notes, data.y)
    most = min(most, MOST_PREDICTIONS // len(data.class_names))
    pool = _at_most(most, np.flatnonzero(~data.is_labeled), "unlabelled", rng, notes)
    y = data.y[labeled]
    predictions, model = _predict(data, labeled, pool, seed, report)
    probe = _probe_findings(predictions, y, model)
    if len(pool) == 0:
        cannot_tell.append("Every row has a label, so there is no pool to estimate shares of.")
        return _Evidence(probe)

    report(NUM_STEPS - 2, NUM_STEPS)
    em, bbse, disagree = pool_shares(predictions, y, seed=seed)
    report(NUM_STEPS - 1, NUM_STEPS)
    at_random, num_folds = None, len(predictions.probs_pool)
    if np.bincount(y).max() >= num_folds:
        at_random = missing_at_random_test(predictions, y, seed=seed)
    else:
        cannot_tell.append(f"Whether labels are missing at random cannot be tested: no class has {num_folds} of them.")
    report(NUM_STEPS, NUM_STEPS)
    return _Evidence(probe, em, bbse if disagree else None, at_random)


def _at_most(
    most: int,
    rows: npt.NDArray[np.intp],
    what: str,
    rng: np.random.Generator,
    notes: list[str],
    y: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.intp]:
    """Rows drawn at random; with `y`, a few of each class among them whatever the draw, so that none goes missing."""
    if len(rows) <= most:
        return rows
    shuffled = rng.permutation(rows)
    few = rows[:0]
    if y is not None:
        few = np.concatenate([shuffled[y[shuffled] == c][:NUM_FOLDS] for c in np.unique(y[rows])])
    others = shuffled[~np.isin(shuffled, few)]
    drawn = np.sort(np.concatenate([few, others[: max(0, most - len(few))]]))
    notes.append(f"the estimates look at {len(drawn):,} of the {len(rows):,} {what} rows, drawn at random")
    return drawn


def _predict(
    data: PartlyLabeled, labeled: npt.NDArray[np.intp], pool: npt.NDArray[np.intp], seed: int, report: OnProgress
) -> tuple[OutOfFold, str]:
    """What the probe thinks of rows that it has not seen, and what kind of model it is."""
    report(0, NUM_STEPS)
    rows = np.concatenate([labeled, pool])
    x: npt.NDArray[Any]
    is_categorical = None
    if isinstance(data.x, Table):
        table = data.x.rows(rows)
        x, is_categorical = TableEncoder.fit(table).for_trees(table)
    else:
        x = patch_features(data.x, rows, seed=seed) if data.kind == "images" else data.x[rows]
    takes_trees = data.kind == "table" or x.shape[1] <= MOST_FEATURES_OF_TREES
    steps_done = 0

    def make_model() -> Any:
        nonlocal steps_done
        steps_done += 1
        report(steps_done, NUM_STEPS)
        return gradient_boosting(is_categorical, seed) if takes_trees else _logistic_regression()

    predictions = out_of_fold(
        make_model,
        x[: len(labeled)],
        data.y[labeled],
        x[len(labeled) :],
        num_classes=len(data.class_names),
        num_folds=NUM_FOLDS,
        seed=seed,
    )
    model = "gradient boosting" if takes_trees else "logistic regression"
    return predictions, f"{model} on image patches" if data.kind == "images" else model


def _logistic_regression() -> Any:
    """Held back, as suits features that are more than the labels."""
    # imported here because it takes a second, which `import mnar` need not wait for
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
    evidence: _Evidence,
) -> ClassFindings:
    count, pool_share = int(num_labels[c]), _estimate(evidence.em, c)
    one_in = pool_share and Estimate(
        *(1 + share * num_unlabeled / count for share in (pool_share.value, pool_share.low, pool_share.high))
    )
    labeled_share = count / max(1, int(num_labels.sum()))
    return ClassFindings(name, count, labeled_share, pool_share, _estimate(evidence.bbse, c), one_in)


def _estimate(interval: Interval | None, c: int) -> Estimate | None:
    if interval is None or np.isnan(interval.shares[c]):
        return None
    return Estimate(float(interval.shares[c]), float(interval.low[c]), float(interval.high[c]))


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
