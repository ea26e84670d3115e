"""CReST, literally: sorted lists, loops over classes, whole numbers where the formula has a root. Slow on purpose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction

Row = Sequence[float]


def mirrored_counts(counts: Sequence[int]) -> list[int | None]:
    """N_{L+1-l} of each class: the count of the class as far from the end of the ranking as it is from the beginning.

    None for a class without labels, which is not ranked; of equal counts the lower class number comes first.
    """
    ranking = sorted((c for c in range(len(counts)) if counts[c] > 0), key=lambda c: (-counts[c], c))
    mirrored: list[int | None] = [None] * len(counts)
    for position, c in enumerate(ranking):
        mirrored[c] = counts[ranking[len(ranking) - 1 - position]]
    return mirrored


def rates(counts: Sequence[int], alpha: float) -> list[float]:
    return [1.0 if mirror is None else (mirror / max(counts)) ** alpha for mirror in mirrored_counts(counts)]


def quota(size: int, mirror: int | None, most: int, alpha: Fraction) -> int:
    """The largest whole m <= size * (mirror / most)^alpha, without rounding: both sides to the power that is whole."""
    if mirror is None:
        return size
    p, q = alpha.numerator, alpha.denominator
    m = 0
    while (m + 1) ** q * most**p <= size**q * mirror**p:
        m += 1
    return m


def select(
    probs: Sequence[Row], counts: Sequence[int], labeled_rows: Collection[int], alpha: Fraction
) -> list[tuple[int, int]]:
    """(row, class) of everybody who joins: class after class, the surest first."""
    members: list[list[int]] = [[] for _ in counts]
    for row, p in enumerate(probs):
        if row not in labeled_rows:
            members[list(p).index(max(p))].append(row)
    joining = []
    for c, mirror in enumerate(mirrored_counts(counts)):
        surest_first = sorted(members[c], key=lambda row: (-max(probs[row]), row))
        joining += [(row, c) for row in surest_first[: quota(len(members[c]), mirror, max(counts), alpha)]]
    return joining


def tempering(generation: int, generations: int, t_min: float) -> float:
    """From 1 in the first generation to t_min in the last; a single generation is the first."""
    if generations == 1:
        return 1.0
    return 1 - generation / (generations - 1) * (1 - t_min)


def target(counts: Sequence[int], t: float) -> list[float]:
    """Normalize(p_data^t)."""
    tempered = [(count / sum(counts)) ** t for count in counts]
    return [share / sum(tempered) for share in tempered]
