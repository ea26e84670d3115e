"""The report of a portfolio run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mnar.own_data.inputs import fitted_rows, label_counts
from mnar.own_data.next_samples import NextSamples
from mnar.own_data.page.class_scores import confused_pairs, confusion_of, precision_scores
from mnar.own_data.page.parts import (
    EQUAL_CLASSES,
    at_random,
    confused,
    interval,
    intervals,
    next_command,
    pool_intervals,
    sentence,
)
from mnar.own_data.page.shown_samples import PoolView
from mnar.own_data.page.to_label import balanced, candidates_of, short_list
from mnar.own_data.portfolio import Choice
from mnar.own_data.portfolio.member import Floats, Samples
from mnar.own_data.portfolio_model import Predictions
from mnar.report import OwnDataPage, Reliability, TriedMember
from mnar.types import DataSet

HELPED = {
    "helped": "Probably yes.",
    "did harm": "No, they did harm. The chosen model does not use them.",
    "made no difference": "They made no difference.",
    "cannot tell": "It cannot be told yet.",
}
ABOUT_SAMPLES = {
    "balanced_accuracy": f"{EQUAL_CLASSES} These probabilities decide the predicted class. The confidences above and "
    "in predictions.csv are for the estimated class mix of the pool.",
    "accuracy": "The probabilities are for the estimated class mix of the pool. These probabilities decide the "
    "predicted class.",
}


def _balanced_probs(choice: Choice, predictions: Predictions) -> Floats:
    """Return the probabilities of the predictions as if all classes were equally frequent, [n, k]."""
    is_balanced = choice.objective == "balanced_accuracy"
    return predictions.decisive_probs if is_balanced else balanced(predictions.decisive_probs, choice.shares)


def portfolio_short_list(
    data: DataSet, samples: Samples, choice: Choice, pool: npt.NDArray[np.intp], predictions: Predictions
) -> NextSamples | None:
    """Choose a few samples to label next, among the samples whose features the training has computed."""
    row_of_sample = fitted_rows(data, samples.seed)
    of_pool = np.flatnonzero(~samples.is_labeled)
    of_pool = of_pool[candidates_of(len(of_pool), samples.seed)]
    candidates = np.searchsorted(pool, row_of_sample[of_pool])
    features = samples.inputs.features
    return short_list(
        _balanced_probs(choice, predictions)[candidates],
        features[of_pool],
        features[samples.is_labeled],
        label_counts(data),
        choice.shares,
        data.class_names,
        candidates,
    )


def own_data_page(
    source: str,
    data: DataSet,
    choice: Choice,
    verdict: str,
    warnings: Sequence[str],
    pool: npt.NDArray[np.intp],
    predictions: Predictions,
    *,
    folder: Path,
    origin: Sequence[tuple[str, str]] = (),
    to_label: NextSamples | None = None,
) -> OwnDataPage:
    """Collect the content of the page.

    pool        the rows without a label, in the order of `predictions`
    origin      where the page comes from, as names and values (provenance.py)
    to_label    samples that should be labelled next
    """
    num_classes, cross = len(data.class_names), choice.cross_validated
    has_pool = len(pool) > 0
    shares = np.bincount(predictions.labels, minlength=num_classes) / max(1, len(pool))
    confusion = confusion_of(cross.probs.argmax(1), cross.y, num_classes, repeats=cross.repeats)
    view = PoolView(data, pool, predictions.labels, predictions.decisive_probs)
    return OwnDataPage(
        title=Path(source).name,
        class_names=data.class_names,
        num_labels=label_counts(data).tolist(),
        num_unlabeled=len(pool),
        verdict=sentence(verdict),
        helped="This was not compared." if choice.comparison is None else HELPED[choice.comparison.verdict],
        difference=None if choice.comparison is None else interval(choice.comparison.balanced_accuracy),
        at_random=at_random(choice.at_random),
        pool_shares=pool_intervals(choice.shares),
        predicted_shares=shares.tolist() if has_pool else None,
        members=[
            TriedMember(
                name=member.name,
                uses_pool=member.uses_pool,
                balanced_accuracy=interval(member.balanced_accuracy),
                accuracy=interval(member.accuracy) if has_pool else None,
                seconds=member.seconds or None,
                is_chosen=member.weight > 0,
                remark=member.remark or member.description,
            )
            for member in choice.members
        ],
        training=[("Chosen model", sentence(choice.reason))],
        scored_on="The scores come from cross-validation: each label was predicted by models that were not fitted to "
        "it.",
        recalls=intervals(choice.recalls["chosen"]),
        labels_only_recalls=intervals(choice.recalls.get("labels alone", ())),
        precisions=intervals(precision_scores(confusion, choice.shares)),
        confused=confused(confused_pairs(confusion), confusion, data.class_names),
        confidences=predictions.confidences if has_pool else None,
        reliability=Reliability(cross.confidence, cross.is_right, cross.weight),
        columns=view.columns,
        num_columns=view.num_columns,
        samples=view.by_class(),
        about_samples=ABOUT_SAMPLES[choice.objective],
        next_samples=view.to_label(to_label, _balanced_probs(choice, predictions)),
        about_next_samples=EQUAL_CLASSES,
        next_command=next_command(folder, len(pool)),
        provenance=origin,
        notes=[*map(sentence, data.notes)],
        warnings=[sentence(warning) for warning in warnings],
    )
