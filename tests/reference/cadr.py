"""CADR, literally: loops over samples, a pseudo-inverse by SVD, gradients by differences. Slow on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Row = Sequence[float]
Rows = Sequence[Row]

SMALLEST_PRIOR = 1e-8
FLOAT32_EPS = 2.0**-23
DIFFERENCE = 1e-5


class Labeled(NamedTuple):
    cap: float
    supp: float
    mask: list[bool]
    prior: list[float]  # w P
    log_s: list[float]


class LiteralCADR:
    def __init__(
        self,
        num_classes: int,
        *,
        momentum: float = 0.99,
        beta: float = 0.5,
        weight_limit: float = 5.0,
        labeled_threshold: float = 0.95,
    ) -> None:
        self.momentum, self.beta = momentum, beta
        self.weight_limit, self.labeled_threshold = weight_limit, labeled_threshold
        self.prior = [1 / num_classes] * num_classes

    def track(self, probs: Rows) -> None:
        self.prior = self.prior_after(probs)

    def prior_after(self, probs: Rows) -> list[float]:
        means = [sum(column) / len(probs) for column in zip(*probs, strict=True)]
        return [self.momentum * old + (1 - self.momentum) * mean for old, mean in zip(self.prior, means, strict=True)]

    def thresholds(self, tau: float, prior: Row | None = None) -> list[float]:
        """Of each class; by the prior as it is, unless told."""
        prior = self.prior if prior is None else prior
        return [tau * (share / max(prior)) ** self.beta for share in prior]

    def weight(self, probs: Rows) -> list[float]:
        """w, with tensorflow's cut-off for float32."""
        cut_off = 10 * max(np.shape(probs)) * FLOAT32_EPS
        weight = np.array(self.prior) @ np.linalg.pinv(np.array(probs), rcond=cut_off)
        return [min(max(float(w), 0.0), self.weight_limit) for w in weight]

    def labeled(self, logits: Rows, y: Sequence[int], logits_weak: Rows, weight: Row | None = None) -> Labeled:
        """What the labelled loss consists of; `weight` holds w fixed, as stopgrad does."""
        probs = [softmax(z) for z in logits_weak]
        weight = self.weight(probs) if weight is None else weight
        prior = [0.0] * len(self.prior)
        for w, p in zip(weight, probs, strict=True):
            for c, share in enumerate(p):
                prior[c] += w * share
        prior = [max(share, SMALLEST_PRIOR) for share in prior]

        predictions = [softmax(z) for z in logits]
        log_s = log_weights(prior, y)
        cap = sum(-math.log(p[c]) - s for p, c, s in zip(predictions, y, log_s, strict=True)) / len(y)

        guesses = [p.index(max(p)) for p in predictions]
        thresholds = self.thresholds(self.labeled_threshold, self.prior_after(probs))
        mask = [max(p) >= thresholds[c] for p, c in zip(predictions, guesses, strict=True)]
        supp = sum(m * s for m, s in zip(mask, log_weights(prior, guesses), strict=True)) / len(y)
        return Labeled(cap, supp, mask, prior, log_s)

    def gradients(self, logits: Rows, y: Sequence[int], logits_weak: Rows) -> tuple[list[list[float]], ...]:
        """Of L_CAP + L_supp by the labelled and by the weak logits."""
        weight = self.weight([softmax(z) for z in logits_weak])

        def loss(logits: Rows, logits_weak: Rows) -> float:
            parts = self.labeled(logits, y, logits_weak, weight)
            return parts.cap + parts.supp

        by_labeled = differences(lambda z: loss(z, logits_weak), logits)
        return by_labeled, differences(lambda z: loss(logits, z), logits_weak)


def softmax(logits: Row) -> list[float]:
    exponentials = [math.exp(z - max(logits)) for z in logits]
    return [e / sum(exponentials) for e in exponentials]


def log_weights(prior: Row, classes: Sequence[int]) -> list[float]:
    """log s_i, s_i = B (1 / prior[c_i]) / sum_j 1 / prior[c_j]."""
    total = sum(1 / prior[c] for c in classes)
    return [math.log(len(classes) * (1 / prior[c]) / total) for c in classes]


def differences(function: Callable[[Rows], float], at: Rows) -> list[list[float]]:
    gradient = []
    for i, row in enumerate(at):
        gradient.append([0.0] * len(row))
        for c in range(len(row)):
            above, below = [list(r) for r in at], [list(r) for r in at]
            above[i][c] += DIFFERENCE
            below[i][c] -= DIFFERENCE
            gradient[i][c] = (function(above) - function(below)) / (2 * DIFFERENCE)
    return gradient
