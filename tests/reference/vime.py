"""VIME's losses, literally, from the formulas on the method's page. Slow on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.reference.fixmatch import cross_entropy

Row = Sequence[float]
Rows = Sequence[Row]


class Semi(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float


class Pretext(NamedTuple):
    loss: float
    mask: float
    feature: float


def softmax(logits: Row) -> list[float]:
    return [math.exp(-cross_entropy(logits, c)) for c in range(len(logits))]


def variance(copies: Sequence[Rows]) -> float:
    """Over the copies, of each logit of each sample; then the mean."""
    total, count = 0.0, 0
    for sample in range(len(copies[0])):
        for c in range(len(copies[0][0])):
            logits = [copy[sample][c] for copy in copies]
            centre = sum(logits) / len(logits)
            total += sum((logit - centre) ** 2 for logit in logits) / len(logits)
            count += 1
    return total / count


def squared_difference(copies: Sequence[Rows], target: Rows) -> float:
    differences = [
        (p - q) ** 2
        for copy in copies
        for logits, row in zip(copy, target, strict=True)
        for p, q in zip(softmax(logits), row, strict=True)
    ]
    return sum(differences) / len(differences)


def soft_cross_entropy(copies: Sequence[Rows], target: Rows) -> float:
    losses = [
        sum(q * cross_entropy(logits, c) for c, q in enumerate(row))
        for copy in copies
        for logits, row in zip(copy, target, strict=True)
    ]
    return sum(losses) / len(losses)


def vime(
    logits_x: Rows,
    targets: Sequence[int],
    logits_copies: Sequence[Rows],
    rectified: Rows,
    *,
    consistency: str,
    unlabeled_weight: float,
) -> Semi:
    labeled = sum(cross_entropy(row, y) for row, y in zip(logits_x, targets, strict=True)) / len(targets)
    if consistency == "var":
        unlabeled = variance(logits_copies)
    elif consistency == "mse":
        unlabeled = squared_difference(logits_copies, rectified)
    else:
        unlabeled = soft_cross_entropy(logits_copies, rectified)
    return Semi(labeled + unlabeled_weight * unlabeled, labeled, unlabeled)


def vime_self(
    x: Rows, corrupted: Rows, mask_logits: Rows, feature_logits: Rows, *, feature_weight: float, bounded: bool
) -> Pretext:
    mask = feature = 0.0
    cells = [(i, j) for i in range(len(x)) for j in range(len(x[0]))]
    for i, j in cells:
        changed = 1 / (1 + math.exp(-mask_logits[i][j]))  # the chance that it was
        mask -= math.log(changed if corrupted[i][j] != x[i][j] else 1 - changed)
        guess = 1 / (1 + math.exp(-feature_logits[i][j])) if bounded else feature_logits[i][j]
        feature += (guess - x[i][j]) ** 2
    mask, feature = mask / len(cells), feature / len(cells)
    return Pretext(mask + feature_weight * feature, mask, feature)
