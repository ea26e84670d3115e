"""What to train half-labelled data with, from what an inspection found out about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "features", "table"]
Pool = Literal["alike", "differs", "unknown"]  # its mix of classes, beside that of the labels

SIGNIFICANT = 0.05
MOVED = 0.05  # share of the pool that belongs to other classes than the labels say; below, it is as good as the same
FEW_LABELS = 10  # per class, on average

LEARNER_FOR: dict[Kind, str] = {"table": "pseudo_label", "features": "pseudo_label", "images": "fixmatch"}
# By the pool, and whether labels are few: the guidance for tables and features, that for images, and why. Chosen by the
# measurements in docs/results.md.
GUIDANCE_FOR: dict[tuple[Pool, bool], tuple[str, str, str]] = {
    ("alike", True): ("none", "none", "labels are too few for their own mix to be aligned to"),
    ("alike", False): ("distribution_alignment", "distribution_alignment", "so the pool can be aligned to the labels"),
    ("differs", True): ("cadr", "prg_last", "this guidance assumes nothing about the mix of the pool"),
    ("differs", False): (
        "cadr",
        "simpro",
        "this guidance goes by the predictions for the pool, not by the labels' mix",
    ),
    ("unknown", True): ("cadr", "prg_last", "this guidance assumes nothing about the mix of the pool"),
    ("unknown", False): ("cadr", "prg_last", "this guidance assumes nothing about the mix of the pool"),
}


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
    pool, finding = _compare(num_labels, pool_shares, p_value)
    num_classes = sum(n > 0 for n in num_labels)
    of_tables, of_images, why = GUIDANCE_FOR[pool, sum(num_labels) < FEW_LABELS * num_classes]
    return Recommendation(LEARNER_FOR[kind], of_images if kind == "images" else of_tables, f"{finding}; {why}")


def _compare(num_labels: Sequence[int], pool_shares: Sequence[float | None], p_value: float | None) -> tuple[Pool, str]:
    if p_value is None:
        return "unknown", "labels are too few to tell whether the pool is mixed as they are"
    if p_value >= SIGNIFICANT:
        return "alike", f"there is no sign that labels are missing other than at random (p = {p_value:.2g})"
    shares = zip(num_labels, pool_shares, strict=True)
    moved = sum(abs(n / sum(num_labels) - share) for n, share in shares if share is not None) / 2
    if moved < MOVED:
        return "alike", f"the pool differs from the labels, but its mix of classes only by {moved:.1%}"
    return "differs", f"{moved:.0%} of the pool would have to change class for it to be mixed as the labels are"
