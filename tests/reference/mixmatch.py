"""MixMatch, one sample after another, as its paper writes it: slow and literal.

Images are flat lists of pixels. What is drawn (the weight and the partner of each row of the pool) is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

Row = Sequence[float]
Rows = Sequence[Row]
Model = Callable[[Row], Row]  # an image -> its logits


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float


def softmax(logits: Row) -> list[float]:
    highest = max(logits)
    exponentials = [math.exp(logit - highest) for logit in logits]
    return [exponential / sum(exponentials) for exponential in exponentials]


def soft_cross_entropy(target: Row, logits: Row) -> float:
    """H(target, softmax(logits))"""
    return -sum(t * math.log(p) for t, p in zip(target, softmax(logits), strict=True))


def average_prediction(model: Model, views: Sequence[Rows]) -> list[list[float]]:
    """Eq. 6, for each image: the mean over its views of the prediction."""
    averages = []
    for views_of_image in zip(*views, strict=True):
        predictions = [softmax(model(view)) for view in views_of_image]
        averages.append([sum(of_class) / len(predictions) for of_class in zip(*predictions, strict=True)])
    return averages


def sharpen(probs: Row, temperature: float) -> list[float]:
    """Eq. 7"""
    powers = [p ** (1 / temperature) for p in probs]
    return [power / sum(powers) for power in powers]


def mixup(first: Row, second: Row, share: float) -> list[float]:
    """Eq. 8 to 11, for a share drawn from Beta(alpha, alpha)."""
    weight = max(share, 1 - share)
    return [weight * a + (1 - weight) * b for a, b in zip(first, second, strict=True)]


def one_hot(label: int, num_classes: int) -> list[float]:
    return [float(number == label) for number in range(num_classes)]


def mixmatch(
    model: Model,
    images: Rows,
    targets: Sequence[int],
    views: Sequence[Rows],
    rectified: Rows,
    *,
    shares: Sequence[float],
    partners: Sequence[int],
    temperature: float,
    unlabeled_weight: float,
) -> Reference:
    num_classes = len(rectified[0])
    pool = [(image, one_hot(y, num_classes)) for image, y in zip(images, targets, strict=True)]
    for view in views:
        pool += [(image, sharpen(q, temperature)) for image, q in zip(view, rectified, strict=True)]
    mixed = []
    for (image, label), share, partner in zip(pool, shares, partners, strict=True):
        other_image, other_label = pool[partner]
        mixed.append((mixup(image, other_image, share), mixup(label, other_label, share)))

    labeled, unlabeled = 0.0, 0.0
    for image, label in mixed[: len(images)]:
        labeled += soft_cross_entropy(label, model(image)) / len(images)  # Eq. 3
    num_unlabeled = len(mixed) - len(images)
    for image, label in mixed[len(images) :]:
        squares = [(p - q) ** 2 for p, q in zip(softmax(model(image)), label, strict=True)]
        unlabeled += sum(squares) / (num_classes * num_unlabeled)  # Eq. 4
    return Reference(labeled + unlabeled_weight * unlabeled, labeled, unlabeled)  # Eq. 5
