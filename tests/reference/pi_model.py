"""Pi-Model, one sample after another, as its paper writes it: slow and literal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.reference.fixmatch import Row, cross_entropy


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float
    pseudo_labels: list[int]


def softmax(logits: Row) -> list[float]:
    highest = max(logits)
    powers = [math.exp(logit - highest) for logit in logits]
    return [power / sum(powers) for power in powers]


def pi_model(
    logits_x: Sequence[Row],
    targets: Sequence[int],
    logits_first: Sequence[Row],
    rectified: Sequence[Row],
    *,
    unlabeled_weight: float,
    progress: float,
    ramp: float,
) -> Reference:
    labeled = sum(cross_entropy(row, y) for row, y in zip(logits_x, targets, strict=True)) / len(targets)
    unlabeled, num_terms, pseudo_labels = 0.0, 0, []
    for logits, q in zip(logits_first, rectified, strict=True):
        for z, target in zip(softmax(logits), q, strict=True):
            unlabeled += (z - target) ** 2
            num_terms += 1  # a sample and a class
        pseudo_labels.append(list(q).index(max(q)))
    unlabeled /= num_terms
    ramped = progress / ramp if progress < ramp else 1.0
    return Reference(labeled + unlabeled_weight * ramped * unlabeled, labeled, unlabeled, pseudo_labels)
