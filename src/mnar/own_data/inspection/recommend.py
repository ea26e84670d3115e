"""What to train half-labelled data with, from what an inspection found out about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "features", "table"]

SIGNIFICANT = 0.05
MOVED = 0.05  # share of the pool that belongs to other classes than the labels say; below, it is as good as the same
FEW_LABELS = 10  # per class, on average

LEARNER_FOR: dict[Kind, str] = {"table": "pseudo_label", "features": "pseudo_label", "images": "fixmatch"}


@dataclass(frozen=True)
class Recommendation:
    learner: str
    guidance: str
    reason: str


def recommend(
    kind: Kind, num_labels: Sequence[int], pool_shares: Sequence[float | None] | None, p_value: float | None
) -> Recommendation:
    """For each class: how many labels it has, and its share of the pool if that is known. No shares: there is no pool.

    `p_value` is that of the test whether labels are missing at random; None: it could not be made.
    """
    if pool_shares is None:
        return Recommendation("supervised", "none", "every row has a label")
    is_alike, finding = _compare(num_labels, pool_shares, p_value)
    labels_are_few = sum(num_labels) < FEW_LABELS * sum(n > 0 for n in num_labels)
    guidance, why = _guidance(kind, is_alike, labels_are_few)
    return Recommendation(LEARNER_FOR[kind], guidance, f"{finding}; {why}")


def _guidance(kind: Kind, is_alike: bool, labels_are_few: bool) -> tuple[str, str]:
    """Chosen by the measurements in docs/results.md, and why.

    Never an alignment with the labels' mix: it gains little where the pool has that mix, and does harm where not.
    """
    if kind == "images" and not labels_are_few:
        return "simpro", "this guidance goes by the predictions for the pool, not by the labels' mix"
    guidance = "prg_last" if kind == "images" or is_alike else "cadr"
    return guidance, "this guidance assumes nothing about the mix of the pool"


def _compare(num_labels: Sequence[int], pool_shares: Sequence[float | None], p_value: float | None) -> tuple[bool, str]:
    """Whether the pool is mixed as the labels are, as far as can be told, and how that was found."""
    if p_value is None:
        return False, "labels are too few to tell whether the pool is mixed as they are"
    if p_value >= SIGNIFICANT:
        return True, f"there is no sign that labels are missing other than at random (p = {p_value:.2g})"
    shares = zip(num_labels, pool_shares, strict=True)
    moved = sum(abs(n / sum(num_labels) - share) for n, share in shares if share is not None) / 2
    if moved < MOVED:
        return True, f"the pool differs from the labels, but its mix of classes only by {moved:.1%}"
    return False, f"{moved:.0%} of the pool would have to change class for it to be mixed as the labels are"
