"""ACR, one sample after another, as its paper writes it, with lists: slow and literal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.reference.fixmatch import Row, cross_entropy
from tests.reference.mixmatch import softmax


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float
    mask_rate: float
    pseudo_labels: list[int]  # of the balanced head; -1: none
    plain_pseudo_labels: list[int]
    plain_strength: float


def symmetric_divergence(a: Row, b: Row) -> float:
    """(KL(a || b) + KL(b || a)) / 2"""
    forward = sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))
    backward = sum(y * math.log(y / x) for x, y in zip(a, b, strict=True))
    return (forward + backward) / 2


class LiteralACR:
    """The same options as ACR; `pool_counts` are the running counts of confident predictions."""

    def __init__(
        self,
        label_counts: Sequence[int],
        batch_unlabeled: int,
        *,
        threshold: float,
        strength: float,
        anchors: bool,
        momentum: float,
        unlabeled_weight: float,
    ) -> None:
        self.shares = [count / sum(label_counts) for count in label_counts]
        self.threshold, self.strength, self.anchors = threshold, strength, anchors
        self.momentum, self.unlabeled_weight = momentum, unlabeled_weight
        self.pool_counts = [batch_unlabeled / len(label_counts)] * len(label_counts)

    def adjusted(self, logits: Row, strength: float) -> list[float]:
        """softmax(logits - strength * log pi)"""
        return softmax([logit - strength * math.log(share) for logit, share in zip(logits, self.shares, strict=True)])

    def plain_strength(self) -> float:
        if not self.anchors:
            return self.strength
        pool_shares = [count / sum(self.pool_counts) for count in self.pool_counts]
        uniform = [1 / len(self.shares)] * len(self.shares)
        reverse = self.shares[::-1]  # the classes of the tests are sorted by size
        con, uni, rev = (
            math.exp(symmetric_divergence(pool_shares, anchor)) for anchor in (self.shares, uniform, reverse)
        )
        return self.strength * con / (con + uni + rev)

    def step(
        self,
        plain_x: Sequence[Row],
        balanced_x: Sequence[Row],
        targets: Sequence[int],
        plain_weak: Sequence[Row],
        balanced_weak: Sequence[Row],
        plain_strong: Sequence[Sequence[Row]],
        balanced_strong: Sequence[Sequence[Row]],
    ) -> Reference:
        labeled = 0.0
        for plain, balanced, y in zip(plain_x, balanced_x, targets, strict=True):
            with_prior = [g + self.strength * math.log(share) for g, share in zip(balanced, self.shares, strict=True)]
            labeled += (cross_entropy(plain, y) + cross_entropy(with_prior, y)) / len(targets)

        n = len(plain_weak)
        if self.anchors:
            self._count(balanced_weak)
        plain_strength = self.plain_strength()
        unlabeled, pseudo_labels, plain_pseudo_labels = 0.0, [], []
        for i in range(n):
            p, r = softmax(plain_weak[i]), softmax(balanced_weak[i])
            p_plain, p_balanced = (self.adjusted(plain_weak[i], s) for s in (plain_strength, self.strength))
            plain_label, label = p_plain.index(max(p_plain)), p_balanced.index(max(p_balanced))
            is_used_plain = max(p_plain) >= self.threshold or max(p) >= self.threshold
            is_used = max(r) >= self.threshold or max(p_balanced) >= self.threshold
            plain_pseudo_labels.append(plain_label if is_used_plain else -1)
            pseudo_labels.append(label if is_used else -1)
            for plain_view, balanced_view in zip(plain_strong, balanced_strong, strict=True):
                both = is_used_plain * cross_entropy(plain_view[i], plain_label)
                both += is_used * cross_entropy(balanced_view[i], label)
                unlabeled += both / n / len(plain_strong)

        loss = labeled + self.unlabeled_weight * unlabeled
        mask_rate = sum(label >= 0 for label in pseudo_labels) / n
        return Reference(loss, labeled, unlabeled, mask_rate, pseudo_labels, plain_pseudo_labels, plain_strength)

    def _count(self, balanced_weak: Sequence[Row]) -> None:
        self.pool_counts = [self.momentum * count for count in self.pool_counts]
        for logits in balanced_weak:
            r = softmax(logits)
            if max(r) >= self.threshold:
                self.pool_counts[r.index(max(r))] += 1 - self.momentum
