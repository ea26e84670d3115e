"""SimMatch, one image after another, as its paper writes it, with lists: slow and literal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.reference.comatch import cross_entropy, dot, softmax

Row = Sequence[float]


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float
    instance: float
    mask_rate: float
    pseudo_labels: list[int]  # -1: none


class LiteralSimMatch:
    """The same options as SimMatch; `bank` has an embedding for each labelled image that was visited."""

    def __init__(
        self,
        num_classes: int,
        labels: Sequence[int],
        *,
        threshold: float,
        alpha: float,
        temperature: float,
        unlabeled_weight: float,
        instance_weight: float,
        bank_momentum: float,
    ) -> None:
        self.num_classes, self.labels = num_classes, labels
        self.threshold, self.alpha, self.temperature = threshold, alpha, temperature
        self.unlabeled_weight, self.instance_weight = unlabeled_weight, instance_weight
        self.bank_momentum = bank_momentum
        self.bank: dict[int, list[float]] = {}

    def step(
        self,
        logits_x: Sequence[Row],
        targets: Sequence[int],
        z_x: Sequence[Row],
        x_index: Sequence[int],
        rectified: Sequence[Row],
        z_weak: Sequence[Row],
        logits_strong: Sequence[Row],
        z_strong: Sequence[Row],
    ) -> Reference:
        onehot = [[float(c == label) for c in range(self.num_classes)] for label in targets]
        labeled = sum(map(cross_entropy, onehot, logits_x)) / len(targets)
        self._remember(z_x, x_index)

        images = sorted(self.bank)
        unlabeled, instance, pseudo_labels = 0.0, 0.0, []
        for q, z, logits, z_s in zip(rectified, z_weak, logits_strong, z_strong, strict=True):
            similar = softmax([dot(z, self.bank[image]) / self.temperature for image in images])

            smoothed = [self.alpha * share for share in q]
            for share, image in zip(similar, images, strict=True):
                smoothed[self.labels[image]] += (1 - self.alpha) * share
            confident = max(smoothed) >= self.threshold
            pseudo_labels.append(smoothed.index(max(smoothed)) if confident else -1)
            unlabeled += cross_entropy(smoothed, logits) if confident else 0.0

            unfolded = [share * q[self.labels[image]] for share, image in zip(similar, images, strict=True)]
            if sum(unfolded) > 0:
                unfolded = [share / sum(unfolded) for share in unfolded]
                similarity = [dot(z_s, self.bank[image]) / self.temperature for image in images]
                instance += cross_entropy(unfolded, similarity)

        n = len(rectified)
        unlabeled, instance = unlabeled / n, instance / n
        loss = labeled + self.unlabeled_weight * unlabeled + self.instance_weight * instance
        mask_rate = sum(label >= 0 for label in pseudo_labels) / n
        return Reference(loss, labeled, unlabeled, instance, mask_rate, pseudo_labels)

    def _remember(self, z_x: Sequence[Row], x_index: Sequence[int]) -> None:
        for image in sorted(set(x_index)):
            visits = [z for z, index in zip(z_x, x_index, strict=True) if index == image]
            new = [sum(numbers) / len(visits) for numbers in zip(*visits, strict=True)]
            if image in self.bank:
                m = self.bank_momentum
                new = [m * old + (1 - m) * number for old, number in zip(self.bank[image], new, strict=True)]
            length = math.sqrt(dot(new, new))
            self.bank[image] = [number / length for number in new]
