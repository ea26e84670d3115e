"""Conversions that the pages of portfolio runs and of network runs share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mnar.own_data.inspection import label_shift
from mnar.own_data.page.class_scores import Confusion, Pair
from mnar.own_data.portfolio.scores import Score
from mnar.report import AtRandom, ConfusedPair, Interval

EQUAL_CLASSES = "The probabilities are computed as if all classes were equally frequent."


def sentence(text: str) -> str:
    """Return the text with a capital letter at its start and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def interval(score: Score | None) -> Interval | None:
    """Return the score as the page takes it."""
    return None if score is None else Interval(score.value, score.low, score.high)


def intervals(scores: Sequence[Score | None]) -> list[Interval | None]:
    """Return the scores of all classes as the page takes them."""
    return [interval(score) for score in scores]


def pool_intervals(shares: label_shift.Interval | None) -> list[Interval | None]:
    """Return the estimated share of each class; empty without an estimate."""
    if shares is None:
        return []
    rows = zip(*shares, strict=True)
    return [None if np.isnan(value) else Interval(float(value), float(low), float(high)) for value, low, high in rows]


def next_command(folder: Path, num_unlabeled: int) -> str:
    """Return the command that chooses samples to label; empty if every sample has a label."""
    return f"mnar next {shlex.quote(str(folder))} --budget {min(100, num_unlabeled)}" if num_unlabeled else ""


def at_random(test: label_shift.AtRandomTest | None) -> AtRandom | None:
    """Return the result of the test as the page takes it."""
    return None if test is None else AtRandom(test.p_value, test.assumptions)


def confused(pairs: Sequence[Pair], confusion: Confusion, class_names: Sequence[str]) -> list[ConfusedPair]:
    """Return the pairs with the names of their classes."""
    return [
        ConfusedPair(
            str(class_names[pair.true]),
            str(class_names[pair.predicted]),
            Interval(*pair.share),
            round(float(confusion.num_labels[pair.true])),
        )
        for pair in pairs
    ]
