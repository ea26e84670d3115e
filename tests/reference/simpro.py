"""SimPro's two steps, literally: Bayes' rule sample by sample, and loops over classes. Slow on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]

SMALLEST_SHARE = 1e-6


class LiteralSimPro:
    def __init__(
        self, labels: Sequence[int], num_classes: int, *, momentum: float = 0.99, start: str = "uniform"
    ) -> None:
        self.labeled_prior = with_smallest_share([labels.count(c) / len(labels) for c in range(num_classes)])
        self.pool_prior = list(self.labeled_prior) if start == "labeled" else [1 / num_classes] * num_classes
        self.momentum = momentum

    def __call__(self, probs: Sequence[Row]) -> list[list[float]]:
        posteriors = [bayes(row, self.pool_prior) for row in probs]
        mean = [sum(column) / len(posteriors) for column in zip(*posteriors, strict=True)]
        for c, share in enumerate(mean):
            self.pool_prior[c] = self.momentum * self.pool_prior[c] + (1 - self.momentum) * share
        self.pool_prior = with_smallest_share(self.pool_prior)
        return posteriors


def bayes(likelihood: Row, prior: Row) -> list[float]:
    joint = [like * share for like, share in zip(likelihood, prior, strict=True)]
    return [value / sum(joint) for value in joint]


def with_smallest_share(shares: Row) -> list[float]:
    shares = [max(share, SMALLEST_SHARE) for share in shares]
    return [share / sum(shares) for share in shares]


def cross_entropy(logits: Sequence[Row], prior: Row, labels: Sequence[int]) -> float:
    """-log of pi_y exp f_y / sum, its mean over the samples."""
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        total -= math.log(bayes([math.exp(value) for value in row], prior)[label])
    return total / len(labels)


def label_shift_em(likelihoods: Sequence[Row], prior: Row, iterations: int) -> list[float]:
    """The class shares of a whole set by classical EM for label shift (Saerens et al., 2002), from known p(x|y)."""
    for _ in range(iterations):
        posteriors = [bayes(row, prior) for row in likelihoods]
        prior = [sum(column) / len(posteriors) for column in zip(*posteriors, strict=True)]
    return list(prior)
