"""What the page about the user's own data says. The page computes nothing about samples: it gets finished estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Interval(NamedTuple):
    """An estimate between 0 and 1 with its 95 % interval; a difference lies between -1 and 1."""

    value: float
    low: float
    high: float


class Reliability(NamedTuple):
    """Predictions for labels that the model was not trained on."""

    confidence: npt.ArrayLike  # [n] confidence of each prediction
    is_correct: npt.ArrayLike  # [n] whether the prediction is the label
    weight: npt.ArrayLike | None = None  # [n] e.g. importance weights that give the labels the pool's class mix


class AtRandom(NamedTuple):
    """Result of the test whether labels are missing at random."""

    p_value: float
    limits: str  # what the test can and cannot show, in sentences


@dataclass(frozen=True)
class TriedMember:
    """One model that was tried. The scores are estimates for the pool, from cross-validation on the labels."""

    name: str
    uses_pool: bool
    balanced_accuracy: Interval | None = None
    accuracy: Interval | None = None
    seconds: float | None = None
    is_chosen: bool = False
    remark: str = ""  # e.g. "left out: it did not finish within its time"


class ConfusedPair(NamedTuple):
    """Samples of one class that the model takes for another class."""

    true: str
    predicted: str
    share: Interval  # of the samples of the class `true` that are predicted as `predicted`
    num_labels: int  # labels of the class `true` that the estimate comes from


class ShownSample(NamedTuple):
    """One sample of the pool: a picture, or some cells of its row."""

    name: str  # its path or its line
    prediction: str  # e.g. "8 (97 %)" or "8 (52 %) or 3 (45 %)"
    image: npt.NDArray[np.uint8] | None = None  # [h, w], [c, h, w] or [h, w, c]
    cells: Sequence[str] = ()  # as many as the page has `columns`


class ClassSamples(NamedTuple):
    """Samples of the pool that are predicted as one class."""

    class_name: str
    confident: Sequence[ShownSample]  # the largest confidences
    contested: Sequence[ShownSample]  # the smallest margins between the first and the second class


class NextSample(NamedTuple):
    """A sample that should be labelled next."""

    sample: ShownSample
    reason: str


@dataclass(frozen=True)
class OwnDataPage:
    """The content of the page. Lists per class are in the order of `class_names`; shares lie between 0 and 1."""

    title: str
    class_names: Sequence[str]
    num_labels: Sequence[int]  # per class
    num_unlabeled: int
    verdict: str  # whole sentences: whether the samples without a label helped
    helped: str = ""  # the verdict in a few words, e.g. "Yes."
    difference: Interval | None = None  # balanced accuracy of the chosen model minus that of the labels-only model
    at_random: AtRandom | None = None  # None: cannot be tested
    pool_shares: Sequence[Interval | None] = ()  # per class; None: cannot be estimated
    predicted_shares: Sequence[float] | None = None  # per class, of the predictions for the pool
    members: Sequence[TriedMember] = ()
    training: Sequence[tuple[str, str]] = ()  # names and values, e.g. ("Learner", "fixmatch")
    training_page: str = ""  # name of a page with the training curves, beside this page
    scored_on: str = ""  # a sentence: which labels the scores come from
    recalls: Sequence[Interval | None] = ()  # per class
    labels_only_recalls: Sequence[Interval | None] = ()  # the same of the labels-only model
    precisions: Sequence[Interval | None] = ()  # per class, for samples with the class mix of the pool
    confused: Sequence[ConfusedPair] = ()  # the most frequent confusion first
    confidences: npt.ArrayLike | None = None  # [n] of the predictions for the pool
    reliability: Reliability | None = None
    columns: Sequence[str] = ()  # names of the cells of a sample; empty for images
    num_columns: int = 0  # of the whole table
    samples: Sequence[ClassSamples] = ()
    about_samples: str = ""  # sentences: which class mix the probabilities of `samples` are for
    next_samples: Sequence[NextSample] = ()
    about_next_samples: str = ""  # the same for `next_samples`
    next_command: str = ""  # writes a longer list of samples to label
    provenance: Sequence[tuple[str, str]] = ()  # names and values, e.g. ("Seed", "1")
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        lists: dict[str, Any] = {"num_labels": self.num_labels, "predicted_shares": self.predicted_shares}
        for name in ("pool_shares", "recalls", "labels_only_recalls", "precisions"):
            lists[name] = getattr(self, name) or None
        for name, values in lists.items():
            if values is not None and len(values) != len(self.class_names):
                raise ValueError(
                    f"{name} has {len(values)} entries for {len(self.class_names)} classes; give one per class"
                )
        shown = [*(sample for group in self.samples for sample in (*group.confident, *group.contested))]
        for sample in (*shown, *(each.sample for each in self.next_samples)):
            if sample.image is None and len(sample.cells) != len(self.columns):
                raise ValueError(
                    f"the sample {sample.name!r} has {len(sample.cells)} cells for {len(self.columns)} columns; "
                    "give one cell per column, or an image"
                )
