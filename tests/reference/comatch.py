"""CoMatch, one image after another, as its paper writes it, with lists: slow and literal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

Row = Sequence[float]


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float
    contrastive: float
    mask_rate: float
    pseudo_labels: list[int]  # -1: none


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits: Row) -> list[float]:
    highest = max(logits)
    exponentials = [math.exp(logit - highest) for logit in logits]
    return [exponential / sum(exponentials) for exponential in exponentials]


def cross_entropy(target: Row, logits: Row) -> float:
    """H(target, softmax(logits))"""
    return -sum(share * math.log(prob) for share, prob in zip(target, softmax(logits), strict=True) if share > 0)


class LiteralCoMatch:
    """The same options as CoMatch; `memory` holds (embedding, pseudo-label), the oldest first."""

    def __init__(
        self,
        num_classes: int,
        memory_size: int,
        *,
        threshold: float,
        graph_threshold: float,
        alpha: float,
        temperature: float,
        unlabeled_weight: float,
        contrastive_weight: float,
    ) -> None:
        self.num_classes = num_classes
        self.threshold, self.graph_threshold = threshold, graph_threshold
        self.alpha, self.temperature = alpha, temperature
        self.unlabeled_weight, self.contrastive_weight = unlabeled_weight, contrastive_weight
        self.memory: deque[tuple[list[float], list[float]]] = deque(maxlen=memory_size)

    def one_hot(self, label: int) -> list[float]:
        return [float(c == label) for c in range(self.num_classes)]

    def step(
        self,
        logits_x: Sequence[Row],
        targets: Sequence[int],
        z_x: Sequence[Row],
        rectified: Sequence[Row],
        z_weak: Sequence[Row],
        logits_strong: Sequence[Row],
        z_strong: Sequence[Row],
        z_strong2: Sequence[Row],
    ) -> Reference:
        labeled = sum(map(cross_entropy, map(self.one_hot, targets), logits_x)) / len(targets)

        smoothed = [self._smooth(list(q), z) for q, z in zip(rectified, z_weak, strict=True)]
        for z, label in zip(z_x, targets, strict=True):
            self.memory.append((list(z), self.one_hot(label)))
        for z, q in zip(z_weak, rectified, strict=True):
            self.memory.append((list(z), list(q)))

        n = len(smoothed)
        unlabeled, pseudo_labels = 0.0, []
        for q, logits in zip(smoothed, logits_strong, strict=True):
            confident = max(q) >= self.threshold
            pseudo_labels.append(q.index(max(q)) if confident else -1)
            unlabeled += cross_entropy(q, logits) / n if confident else 0.0

        contrastive = 0.0
        for i in range(n):
            row = [1.0 if i == j else dot(smoothed[i], smoothed[j]) for j in range(n)]
            row = [weight if weight >= self.graph_threshold else 0.0 for weight in row]
            row = [weight / sum(row) for weight in row]
            logits = [dot(z_strong[i], z_strong2[j]) / self.temperature for j in range(n)]
            contrastive += cross_entropy(row, logits) / n

        loss = labeled + self.unlabeled_weight * unlabeled + self.contrastive_weight * contrastive
        mask_rate = sum(label >= 0 for label in pseudo_labels) / n
        return Reference(loss, labeled, unlabeled, contrastive, mask_rate, pseudo_labels)

    def _smooth(self, own: list[float], z: Row) -> list[float]:
        if not self.memory:
            return own
        affinity = softmax([dot(z, other) / self.temperature for other, _ in self.memory])
        smoothed = [self.alpha * share for share in own]
        for weight, (_, label) in zip(affinity, self.memory, strict=True):
            for c in range(self.num_classes):
                smoothed[c] += (1 - self.alpha) * weight * label[c]
        return smoothed
