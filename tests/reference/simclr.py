"""The loss of SimCLR, one pair of views after another, as its paper writes it, with lists: slow and literal."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]


def cosine(a: Row, b: Row) -> float:
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length


def pair_loss(views: Sequence[Row], i: int, j: int, temperature: float) -> float:
    """l(i, j) of Eq. 1: how badly view i recognises view j among all views but i."""
    similar = [math.exp(cosine(views[i], view) / temperature) for view in views]
    return -math.log(similar[j] / sum(similar[k] for k in range(len(views)) if k != i))


def nt_xent(first: Sequence[Row], second: Sequence[Row], temperature: float) -> float:
    """The mean over all ordered pairs of two views of the same image."""
    views = [view for pair in zip(first, second, strict=True) for view in pair]  # 2k - 1 and 2k belong together
    pairs = [(2 * k, 2 * k + 1) for k in range(len(first))]
    total = sum(pair_loss(views, i, j, temperature) + pair_loss(views, j, i, temperature) for i, j in pairs)
    return total / len(views)
