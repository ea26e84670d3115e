"""Sentences and formatted numbers of the page about the user's own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.report.own_data.content import ConfusedPair, Interval, OwnDataPage
from mnar.report.own_data.reliability import ReliabilityBin

UNKNOWN = "–"
SMALL_P_VALUE, VERY_SMALL_P_VALUE = 0.05, 0.01
FEW_LABELS = 10  # a class with fewer labels is short of labels, whatever its share of the pool
MUCH_RARER = 1.5  # a class whose share of the pool is this many times its share of the labels is short of labels
MOST_NAMES = 5


class Answer(NamedTuple):
    """The answer to a question: a few words, and the sentence that explains them."""

    short: str
    explanation: str


class ShortClass(NamedTuple):
    """A class that is short of labels."""

    name: str
    num_labels: str
    in_pool: str  # estimated number of its samples in the pool
    one_in: str  # one of so many samples of the class has a label
    reason: str


def percent(estimate: Interval | float | None) -> str:
    """Return e.g. "83.1 (79.0 to 86.9)"."""
    if isinstance(estimate, float):
        return f"{100 * estimate:.1f}"
    if estimate is None or np.isnan(estimate.value):
        return UNKNOWN
    value, low, high = (100 * end for end in estimate)
    return f"{value:.1f}" if np.isnan(low) or np.isnan(high) else f"{value:.1f} ({low:.1f} to {high:.1f})"


def points(difference: Interval) -> str:
    """Return e.g. "+2.1 points (95 % interval −0.4 to +4.6)"."""
    value, low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in difference)
    return f"{value} points (95 % interval {low} to {high})"


def whether_at_random(page: OwnDataPage) -> Answer:
    """Say what the p-value means."""
    if page.num_unlabeled == 0:
        return Answer("There is nothing to test.", "Every sample has a label.")
    if page.at_random is None:
        return Answer("This cannot be tested.", "There are too few labels that the model was not trained on.")
    p = page.at_random.p_value
    if p < VERY_SMALL_P_VALUE:
        short = "Very probably not."
    elif p < SMALL_P_VALUE:
        short = "Probably not."
    else:
        short = "The test finds no evidence against it."
    cases = f"about {round(1000 * p):,} of 1,000" if p < SMALL_P_VALUE else f"about {round(100 * p)} of 100"
    explanation = (
        "The test compares the predictions for labelled samples that the model was not trained on with the predictions "
        "for samples without a label. If labels were missing at random, a difference at least as large as the observed "
        f"one would occur in {cases} cases (p = {p:.3f})."
    )
    if p >= SMALL_P_VALUE:
        explanation += " A large p-value is not a proof: there may be too few labels to see a difference."
    return Answer(short, explanation)


def short_classes(page: OwnDataPage) -> list[ShortClass]:
    """Return the classes that are short of labels, the most urgent one first."""
    total = max(1, sum(page.num_labels))
    found: list[tuple[float, int, ShortClass]] = []
    for i, (name, labels) in enumerate(zip(page.class_names, page.num_labels, strict=True)):
        pool = page.pool_shares[i] if page.pool_shares else None
        ratio = pool.value * total / labels if pool is not None and labels else np.inf
        reasons = []
        if labels == 0:
            reasons.append("no sample of the class has a label, so no model can learn it")
        elif pool is not None and ratio >= MUCH_RARER and pool.low > labels / total:
            reasons.append(f"its share of the pool is about {ratio:.1f} times its share of the labels")
        if 0 < labels < FEW_LABELS:
            reasons.append(f"{labels} {'label is' if labels == 1 else 'labels are'} too few for a reliable score")
        if reasons:
            entry = ShortClass(
                str(name),
                f"{labels:,}",
                _count(pool, page.num_unlabeled),
                _one_in(pool, page.num_unlabeled, labels),
                "; ".join(reasons),
            )
            found.append((-ratio if pool is not None or not labels else 0.0, labels, entry))
    return [entry for *_, entry in sorted(found, key=lambda each: each[:2])]


def whether_short(page: OwnDataPage, short: Sequence[ShortClass]) -> Answer:
    """Say which classes are short of labels."""
    pool_is_unknown = page.num_unlabeled > 0 and not page.pool_shares
    if short:
        explanation = "The most urgent class comes first." if len(short) > 1 else ""
        if pool_is_unknown:
            explanation += (
                f" The class shares of the pool are not known, so only classes with fewer than {FEW_LABELS} labels are "
                "named."
            )
        return Answer(f"{listed([quoted(each.name) for each in short])}.", explanation.strip())
    if pool_is_unknown:
        return Answer(
            f"No class has fewer than {FEW_LABELS} labels.",
            "The class shares of the pool are not known. A class may have a much larger share of the pool than of the "
            "labels.",
        )
    others = ", and no class has a much larger share of the pool than of the labels" if page.num_unlabeled else ""
    return Answer("None.", f"Every class has at least {FEW_LABELS} labels{others}.")


def what_is_confused(page: OwnDataPage) -> Answer:
    """Say which classes are confused most often."""
    if not page.recalls:
        return Answer("This is unknown.", "No label could be held out to score the model.")
    if not page.confused:
        return Answer("No two classes are confused often.", page.scored_on)
    pair = page.confused[0]
    true, predicted = quoted(pair.true), quoted(pair.predicted)
    return Answer(f"The most frequent confusion: {true} is taken for {predicted}.", page.scored_on)


def confusion_sentence(pair: ConfusedPair) -> str:
    """Return e.g. "Of 100 samples of “8”, about 7 are predicted as “3” (95 % interval 3 to 14, from 41 labels)"."""
    value, low, high = (100 * end for end in pair.share)
    number = "1 is" if round(value) == 1 else f"{value:.0f} are"
    labels = f"{pair.num_labels:,} {'label' if pair.num_labels == 1 else 'labels'}"
    interval = f"95 % interval {low:.0f} to {high:.0f}, from {labels}"
    return f"Of 100 samples of {quoted(pair.true)}, about {number} predicted as {quoted(pair.predicted)} ({interval})."


def confidence_sentence(confidences: npt.ArrayLike) -> str:
    """Say in numbers what the histogram of the confidences shows."""
    values = np.asarray(confidences, float)
    if not len(values):
        return "There are no predictions for the pool."
    sure, unsure = float((values >= 0.9).mean()), float((values < 0.5).mean())
    return (
        f"Of {len(values):,} predictions for the pool, {100 * sure:.0f} % have a confidence of at least 90 %, "
        f"{100 * (1 - sure - unsure):.0f} % have one from 50 to 90 %, and {100 * unsure:.0f} % have one below 50 %. "
        f"The mean confidence is {100 * values.mean():.0f} %."
    )


def reliability_sentence(bins: Sequence[ReliabilityBin]) -> str:
    """Say whether the confidences are too large or too small on average."""
    if not bins:
        return "There are too few predictions to compare confidences with the labels."
    weight = np.array([each.weight for each in bins])
    gap = float(weight @ [each.confidence - each.is_right.value for each in bins] / weight.sum())
    if abs(gap) < 0.01:
        return "On average the confidences equal the share of right predictions, to within one percentage point."
    word, unit = "larger" if gap > 0 else "smaller", "point" if round(100 * abs(gap)) == 1 else "points"
    return f"On average the confidences are {100 * abs(gap):.0f} percentage {unit} {word} than the share that is right."


def bin_sentences(bins: Sequence[ReliabilityBin]) -> list[str]:
    """Say in numbers what each point of the reliability diagram shows."""
    return [
        f"Of the predictions with a confidence around {100 * each.confidence:.0f} %, "
        f"{100 * each.is_right.value:.0f} % are right "
        f"(95 % interval {100 * each.is_right.low:.0f} to {100 * each.is_right.high:.0f} %)."
        for each in bins
    ]


def quoted(name: str) -> str:
    """Return a class name as it stands in a sentence, where a name such as "no" would be read as a word."""
    return f"“{name}”"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others: "a, b and 3 more"."""
    first = [str(name) for name in names[:MOST_NAMES]]
    if len(names) > MOST_NAMES:
        return f"{', '.join(first)} and {len(names) - MOST_NAMES} more"
    return " and ".join([", ".join(first[:-1]), first[-1]]) if len(first) > 1 else first[0]


def _count(share: Interval | None, num_unlabeled: int) -> str:
    if share is None:
        return UNKNOWN
    value, low, high = (f"{end * num_unlabeled:,.0f}" for end in share)
    return f"{value} ({low} to {high})"


def _one_in(share: Interval | None, num_unlabeled: int, labels: int) -> str:
    if share is None or not labels:
        return UNKNOWN
    value, low, high = (f"{1 + end * num_unlabeled / labels:,.1f}" for end in share)
    return f"1 in {value} ({low} to {high})"
