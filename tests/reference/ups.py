"""UPS, one sample and one class after another, as its paper and its published code have it: slow and literal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Row = Sequence[float]


class Labels(NamedTuple):
    positive: dict[int, int]  # row of the unlabelled set -> class
    negative: list[list[bool]]  # per row, per class
    pool: list[int]  # rows with a negative label


def softmax(logits: Row, temperature: float = 1.0) -> list[float]:
    highest = max(logits)
    powers = [math.exp((logit - highest) / temperature) for logit in logits]
    return [power / sum(powers) for power in powers]


def mean_and_deviation(passes: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Per class; the deviation is unbiased, over one less than the passes."""
    means, deviations = [], []
    for values in zip(*passes, strict=True):
        mean = sum(values) / len(values)
        means.append(mean)
        deviations.append(math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)))
    return means, deviations


def positive_label(rectified: Row, deviation: Row, threshold: float, limit: float) -> tuple[int, float, bool]:
    target = list(rectified).index(max(rectified))
    return target, deviation[target], rectified[target] >= threshold and deviation[target] < limit


def negative_labels(probs: Row, deviation: Row, target: int, threshold: float, limit: float) -> list[bool]:
    return [
        label != target and prob < threshold and spread < limit
        for label, (prob, spread) in enumerate(zip(probs, deviation, strict=True))
    ]


def balanced(
    targets: Sequence[int], deviations: Row, positive: Sequence[bool], num_classes: int, minimum: int
) -> list[bool]:
    members: list[list[int]] = [[] for _ in range(num_classes)]
    for sample, target in enumerate(targets):
        if positive[sample]:
            members[target].append(sample)
    quota = max(minimum, min(len(samples) for samples in members))
    kept = [False] * len(targets)
    for samples in members:
        for sample in sorted(samples, key=lambda sample: (deviations[sample], sample))[:quota]:
            kept[sample] = True
    return kept


def relabel(
    logits: Sequence[Sequence[Row]],
    rectified: Sequence[Row],
    generation: int,
    *,
    positive_threshold: float,
    positive_uncertainty: float,
    negative_threshold: float,
    negative_uncertainty: float,
    negative_temperature: float,
    balanced_generations: int,
    balance_minimum: int,
) -> Labels:
    """Per unlabelled sample: the logits of each pass, and the mean prediction after the guidance."""
    num_classes = len(rectified[0])
    targets, deviations, positive, negative = [], [], [], []
    for passes, q in zip(logits, rectified, strict=True):
        _, spread = mean_and_deviation([softmax(row) for row in passes])
        target, uncertainty, chosen = positive_label(q, spread, positive_threshold, positive_uncertainty)
        mean, spread = mean_and_deviation([softmax(row, negative_temperature) for row in passes])
        targets.append(target)
        deviations.append(uncertainty)
        positive.append(chosen)
        negative.append(negative_labels(mean, spread, target, negative_threshold, negative_uncertainty))
    if generation < balanced_generations - 1:
        positive = balanced(targets, deviations, positive, num_classes, balance_minimum)
    for sample, chosen in enumerate(positive):
        if chosen:
            negative[sample] = [False] * num_classes
    return Labels(
        positive={sample: targets[sample] for sample, chosen in enumerate(positive) if chosen},
        negative=negative,
        pool=[sample for sample, labels in enumerate(negative) if any(labels)],
    )


def negative_loss(logits: Sequence[Row], negative: Sequence[Sequence[bool]]) -> float:
    """The mean, over samples with a negative label, of the mean -log(1 - p) of their negative classes."""
    losses = []
    for row, labels in zip(logits, negative, strict=True):
        terms = [
            -math.log(max(1 - prob, 1e-7))
            for prob, is_negative in zip(softmax(row), labels, strict=True)
            if is_negative
        ]
        if terms:
            losses.append(sum(terms) / len(terms))
    return sum(losses) / len(losses) if losses else 0.0
