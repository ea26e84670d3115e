"""ADELLO's three losses and its estimate, literally: sample by sample, with loops over classes. Slow on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Row = Sequence[float]

EPSILON = 1e-9


class Losses(NamedTuple):
    labeled: float  # L_s
    unlabeled: float  # L_u
    complementary: float  # L_c


class LiteralADELLO:
    """One step after another: every loss of a step uses the shares that the steps before it have left."""

    def __init__(
        self,
        labels: Sequence[int],
        num_classes: int,
        *,
        smallest_alpha: float = 0.1,
        momentum: float = 0.999,
        consistency_from: float = 50_000 / 262_144,
        threshold: float = 0.95,
    ) -> None:
        self.labeled_shares = [labels.count(c) / len(labels) for c in range(num_classes)]
        self.pool_shares = [1 / num_classes] * num_classes
        self.smallest_alpha, self.momentum = smallest_alpha, momentum
        self.consistency_from, self.threshold = consistency_from, threshold

    def step(
        self, progress: float, f_x: Sequence[Row], y: Sequence[int], f_weak: Sequence[Row], f_strong: Sequence[Row]
    ) -> Losses:
        alpha = 1 - (1 - self.smallest_alpha) * progress**2
        powers = [share**alpha for share in self.pool_shares]
        target = [power / sum(powers) for power in powers]
        before = list(self.pool_shares)

        probs = [softmax(row) for row in f_weak]
        for c in range(len(before)):
            mean = sum(p[c] for p in probs) / len(probs)
            self.pool_shares[c] = self.momentum * before[c] + (1 - self.momentum) * mean

        labeled = [-log_softmax(adjusted(f, self.labeled_shares, target))[c] for f, c in zip(f_x, y, strict=True)]
        unlabeled, complementary = [], []
        for p, f in zip(probs, f_strong, strict=True):
            log_q = log_softmax(adjusted(f, before, target))
            is_confident = max(p) >= self.threshold
            unlabeled.append(-log_q[p.index(max(p))] if is_confident else 0.0)
            soft = -sum(share * value for share, value in zip(p, log_q, strict=True))
            complementary.append(0.0 if is_confident or progress < self.consistency_from else soft)
        return Losses(*(sum(values) / len(values) for values in (labeled, unlabeled, complementary)))


def adjusted(f: Row, shares: Row, target: Row) -> list[float]:
    return [v + math.log((s + EPSILON) / (t + EPSILON)) for v, s, t in zip(f, shares, target, strict=True)]


def log_softmax(f: Row) -> list[float]:
    total = math.log(sum(math.exp(value - max(f)) for value in f)) + max(f)
    return [value - total for value in f]


def softmax(f: Row) -> list[float]:
    return [math.exp(value) for value in log_softmax(f)]
