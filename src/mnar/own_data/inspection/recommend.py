"""Recommend a learner and a guidance for half-labelled data, from the findings of an inspection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "features", "table"]

SIGNIFICANT = 0.05  # a p-value below this level is evidence against labels missing at random
# Share of the pool that would have to change class to match the labels. Below this share, the two class distributions
# are treated as equal.
MOVED = 0.05
# Above this share, CADR loses: with the pool reversed, it is 4 to 10 points of balanced accuracy below SimPro.
FAR = 0.55

LEARNER_FOR: dict[Kind, str] = {"table": "pseudo_label", "features": "pseudo_label", "images": "fixmatch"}


@dataclass(frozen=True)
class Recommendation:
    """The names of a learner and a guidance, and the reason as a clause."""

    learner: str
    guidance: str
    reason: str


def recommend(
    kind: Kind, num_labels: Sequence[int], pool_shares: Sequence[float | None] | None, p_value: float | None
) -> Recommendation:
    """Recommend a learner and a guidance.

    num_labels     number of labels of each class
    pool_shares    estimated share of each class in the pool, None for a class whose share is unknown; None: no pool
    p_value        p-value of the test whether labels are missing at random; None: the test was not possible
    """
    if pool_shares is None:
        return Recommendation("supervised", "none", "every row has a label")
    moved, finding = _compare(num_labels, pool_shares, p_value)
    guidance, why = _guidance(kind, num_labels, moved)
    return Recommendation(LEARNER_FOR[kind], guidance, f"{finding}; {why}")


def _guidance(kind: Kind, num_labels: Sequence[int], moved: float | None) -> tuple[str, str]:
    """Return a guidance and the reason. The choice follows the measurements in docs/results.md.

    `moved` is the share of the pool that would have to change class: 0 if the pool seems alike, None if unknown.

    An alignment with the class distribution of the labels is never recommended: it gains little where the pool has the
    same class distribution, and does harm where it has not.
    """
    if kind == "images" and all(num_labels):  # prg_balanced needs the class shares of the labels
        return "prg_balanced", "this guidance suits every class distribution of the pool that was tried with images"
    if kind != "images" and moved is not None and moved > FAR:
        return "simpro", "this guidance uses the predictions for the pool, not the class distribution of the labels"
    if kind == "images" or moved == 0:
        return (
            "prg_last",
            "this guidance needs no estimate of the class distribution of the pool; it prefers equal shares",
        )
    return "cadr", "this guidance estimates the class distribution of the pool, and assumes nothing about it"


def _compare(
    num_labels: Sequence[int], pool_shares: Sequence[float | None], p_value: float | None
) -> tuple[float | None, str]:
    """Return the share of the pool that would have to change class to match the labels, and the finding in words.

    The share is 0 if the pool seems to have the class distribution of the labels, and None if that is unknown.
    """
    if p_value is None:
        return None, "there are too few labels to tell whether the pool has the same class distribution"
    if p_value >= SIGNIFICANT:
        return 0.0, f"there is no evidence that labels are missing not at random (p = {p_value:.2g})"
    shares = zip(num_labels, pool_shares, strict=True)
    moved = sum(abs(n / sum(num_labels) - share) for n, share in shares if share is not None) / 2
    if moved < MOVED:
        return 0.0, f"the pool differs from the labelled rows, but its class distribution differs only by {moved:.1%}"
    return moved, f"{moved:.0%} of the pool would have to change class to match the class distribution of the labels"
