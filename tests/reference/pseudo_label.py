"""Pseudo-Label, one sample after another, as its paper writes it, with the threshold of later codes: slow, literal."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.fixmatch import Reference, Row, cross_entropy


def pseudo_label(
    logits_x: Sequence[Row],
    targets: Sequence[int],
    logits_u: Sequence[Row],
    rectified: Sequence[Row],
    *,
    threshold: float,
    unlabeled_weight: float,
    progress: float,
    ramp: float,
) -> Reference:
    labeled = sum(cross_entropy(row, y) for row, y in zip(logits_x, targets, strict=True)) / len(targets)
    unlabeled, pseudo_labels = 0.0, []
    for logits, q in zip(logits_u, rectified, strict=True):
        label = list(q).index(max(q))
        if q[label] >= threshold:
            unlabeled += cross_entropy(logits, label)
            pseudo_labels.append(label)
        else:
            pseudo_labels.append(-1)
    unlabeled /= len(logits_u)  # all of the batch, not only those that passed
    ramped = progress / ramp if progress < ramp else 1.0
    mask_rate = sum(label >= 0 for label in pseudo_labels) / len(pseudo_labels)
    return Reference(labeled + unlabeled_weight * ramped * unlabeled, labeled, unlabeled, mask_rate, pseudo_labels)
