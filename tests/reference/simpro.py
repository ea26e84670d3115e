"""SimPro's released training loop, literally: lists, loops, and one list of logits for each sample. Slow on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]


class LiteralSimPro:
    def __init__(
        self,
        labels: Sequence[int],
        num_classes: int,
        *,
        tau: float = 2.0,
        momentum: float = 0.9,
        update_every: int = 500,
        confidence: float = 0.95,
    ) -> None:
        self.tau, self.momentum, self.update_every, self.confidence = tau, momentum, update_every, confidence
        self.num_classes, self.steps = num_classes, 0
        self.pi_l = [labels.count(c) / len(labels) for c in range(num_classes)]
        self.pi_u = [1 / num_classes] * num_classes
        self.phi = list(self.pi_l)
        self._begin()

    def step(self, logits_weak: Sequence[Row], labels: Sequence[int]) -> list[list[float]]:
        """Return the pseudo-labels of a batch. `labels` has one label per labelled image."""
        if self.steps > 0 and self.steps % self.update_every == 0:
            self._end()
            self._begin()
        self.steps += 1
        pseudo_labels = [softmax([f + a for f, a in zip(row, self.a_u, strict=True)]) for row in logits_weak]
        for q in pseudo_labels:
            if max(q) >= self.confidence:
                self.d = [before + new for before, new in zip(self.d, q, strict=True)]
        for label in labels:
            self.n_l[label] += 1
        return pseudo_labels

    def _begin(self) -> None:
        """Begin a period of `update_every` steps."""
        self.a_u, self.a, self.a_l = (
            [math.log(share**self.tau + 1e-12) for share in prior] for prior in (self.pi_u, self.phi, self.pi_l)
        )
        self.d, self.n_l = [0.0] * self.num_classes, [0.0] * self.num_classes

    def _end(self) -> None:
        """Update both priors."""
        m, trained = self.momentum, [n + d for n, d in zip(self.n_l, self.d, strict=True)]
        self.pi_u = [m * old + (1 - m) * d / (sum(self.d) + 1) for old, d in zip(self.pi_u, self.d, strict=True)]
        self.phi = [m * old + (1 - m) * t / sum(trained) for old, t in zip(self.phi, trained, strict=True)]


def softmax(logits: Row) -> list[float]:
    exponentials = [math.exp(value - max(logits)) for value in logits]
    return [value / sum(exponentials) for value in exponentials]


def cross_entropy(logits: Sequence[Row], bias: Row, targets: Sequence[Row]) -> list[float]:
    """The cross-entropy of softmax(f + A) with a distribution over the classes, for each sample."""
    losses = []
    for row, target in zip(logits, targets, strict=True):
        predicted = softmax([f + a for f, a in zip(row, bias, strict=True)])
        losses.append(-sum(t * math.log(p) for t, p in zip(target, predicted, strict=True) if t > 0))
    return losses


def one_hot(labels: Sequence[int], num_classes: int) -> list[list[float]]:
    return [[float(c == label) for c in range(num_classes)] for label in labels]


def bayes(likelihood: Row, prior: Row) -> list[float]:
    joint = [like * share for like, share in zip(likelihood, prior, strict=True)]
    return [value / sum(joint) for value in joint]


def label_shift_em(likelihoods: Sequence[Row], prior: Row, iterations: int) -> list[float]:
    """The class shares of a whole set by classical EM for label shift (Saerens et al., 2002), from known p(x|y)."""
    for _ in range(iterations):
        posteriors = [bayes(row, prior) for row in likelihoods]
        prior = [sum(column) / len(posteriors) for column in zip(*posteriors, strict=True)]
    return list(prior)
