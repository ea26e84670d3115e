"""CDMAD, literally: logits less those of the blank image, then a softmax, in loops. Slow on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]


def refined(logits: Sequence[Row], of_blank: Row) -> list[list[float]]:
    return [softmax([g - bias for g, bias in zip(row, of_blank, strict=True)]) for row in logits]


def softmax(row: Row) -> list[float]:
    weights = [math.exp(g - max(row)) for g in row]
    return [weight / sum(weights) for weight in weights]
