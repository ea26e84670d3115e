"""FlexMatch, one sample after another, with a dict and a Counter: slow and literal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.reference.fixmatch import Reference, Row, cross_entropy


class LiteralFlexMatch:
    def __init__(
        self,
        num_classes: int,
        num_unlabeled: int,
        *,
        threshold: float,
        unlabeled_weight: float,
        warmup: bool,
        count_from: str = "rectified",
    ) -> None:
        self.num_classes = num_classes
        self.num_unlabeled = num_unlabeled
        self.threshold = threshold
        self.unlabeled_weight = unlabeled_weight
        self.warmup = warmup
        self.count_from = count_from
        self.selected: dict[int, int] = {}  # no entry before the first confident pseudo-label

    def __call__(
        self,
        logits_x: Sequence[Row],
        targets: Sequence[int],
        raw: Sequence[Row],
        rectified: Sequence[Row],
        logits_strong: Sequence[Row],
        index: Sequence[int],
    ) -> Reference:
        thresholds = [self.class_threshold(c) for c in range(self.num_classes)]
        unlabeled, pseudo_labels = 0.0, []
        for i, p, q, logits in zip(index, raw, rectified, logits_strong, strict=True):
            confidence = max(q)
            label = list(q).index(confidence)
            if confidence >= thresholds[label]:
                unlabeled += cross_entropy(logits, label)
                pseudo_labels.append(label)
            else:
                pseudo_labels.append(-1)
            counted = list(p if self.count_from == "raw" else q)
            if max(counted) >= self.threshold:
                self.selected[i] = counted.index(max(counted))
        unlabeled /= len(index)
        labeled = sum(cross_entropy(row, y) for row, y in zip(logits_x, targets, strict=True)) / len(targets)
        mask_rate = sum(label >= 0 for label in pseudo_labels) / len(pseudo_labels)
        return Reference(labeled + self.unlabeled_weight * unlabeled, labeled, unlabeled, mask_rate, pseudo_labels)

    def class_threshold(self, c: int) -> float:
        sigma = Counter(self.selected.values())
        most = max(sigma.values(), default=0)
        if self.warmup:
            most = max(most, self.num_unlabeled - len(self.selected))
        beta = sigma[c] / most if most else 0.0
        return self.threshold * beta / (2 - beta)
