"""FixMatch, one sample after another, as its paper writes it: slow and literal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Row = Sequence[float]


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float
    mask_rate: float
    pseudo_labels: list[int]  # -1: none


def cross_entropy(logits: Row, target: int) -> float:
    """-log softmax(logits)[target]"""
    highest = max(logits)
    return highest + math.log(sum(math.exp(logit - highest) for logit in logits)) - logits[target]


def fixmatch(
    logits_x: Sequence[Row],
    targets: Sequence[int],
    rectified: Sequence[Row],
    logits_strong: Sequence[Row],
    *,
    threshold: float,
    unlabeled_weight: float,
) -> Reference:
    labeled = sum(cross_entropy(row, y) for row, y in zip(logits_x, targets, strict=True)) / len(targets)
    unlabeled, pseudo_labels = 0.0, []
    for q, logits in zip(rectified, logits_strong, strict=True):
        if max(q) >= threshold:
            pseudo_label = list(q).index(max(q))
            unlabeled += cross_entropy(logits, pseudo_label)
        else:
            pseudo_label = -1
        pseudo_labels.append(pseudo_label)
    unlabeled /= len(rectified)  # all of the batch, not only those that passed
    mask_rate = sum(label >= 0 for label in pseudo_labels) / len(pseudo_labels)
    return Reference(labeled + unlabeled_weight * unlabeled, labeled, unlabeled, mask_rate, pseudo_labels)
