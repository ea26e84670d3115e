"""DARP, literally: root searches class by class, loops over samples, all predictions in a list. Slow on purpose.

An oracle for `mnar.guidances.darp` and `mnar.guidances.refinery`, written from the formulas on the method's page.
Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq, minimize

Row = Sequence[float]
Rows = list[list[float]]

SMALLEST_PROB = 1e-6


def entropies(probs: Sequence[Row]) -> list[float]:
    """1 / w_n"""
    return [max(-sum(p * math.log(p + SMALLEST_PROB) for p in row), 1e-6) for row in probs]


def remove_noise(probs: Sequence[Row], target: Row, delta: float) -> Rows:
    kept = [[0.0] * len(target) for _ in probs]
    for c, count in enumerate(target):
        best_first = sorted(range(len(probs)), key=lambda n: -probs[n][c])  # of equal ones, the earlier row first
        chosen = best_first[: int(delta * count)]
        mass = sum(probs[n][c] for n in chosen)
        for n in chosen:
            kept[n][c] = probs[n][c] * (count + SMALLEST_PROB) / (mass + SMALLEST_PROB)
    return [[(p + SMALLEST_PROB) / sum(q + SMALLEST_PROB for q in row) for p in row] for row in kept]


def refine(probs: Sequence[Row], target: Row, iterations: int) -> Rows:
    """Rows and columns take turns; each column by a root search to the last digit."""
    entropy = entropies(probs)
    nu = [0.0] * len(target)
    for _ in range(iterations):
        row_factors = [1 / sum(row) for row in _weighted(probs, entropy, nu)]
        nu = [_column_root([row[c] for row in probs], row_factors, entropy, count) for c, count in enumerate(target)]
    return [[x / sum(row) for x in row] for row in _weighted(probs, entropy, nu)]


def optimum(probs: Sequence[Row], target: Row) -> Rows:
    """The solution itself, from the convex dual: min over nu of sum_n log(sum_c P_nc exp(-nu_c H_n)) / H_n + nu M."""
    entropy = entropies(probs)

    def dual(nu: Row) -> tuple[float, list[float]]:
        weighted = _weighted(probs, entropy, nu)
        value = sum(math.log(sum(row)) / h for row, h in zip(weighted, entropy, strict=True))
        value += sum(price * count for price, count in zip(nu, target, strict=True))
        shares = [[x / sum(row) for x in row] for row in weighted]
        return value, [count - sum(row[c] for row in shares) for c, count in enumerate(target)]

    found = minimize(dual, [0.0] * len(target), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    return [[x / sum(row) for x in row] for row in _weighted(probs, entropy, found.x.tolist())]


def _weighted(probs: Sequence[Row], entropy: Row, nu: Row) -> Rows:
    """P_nc exp(-nu_c H_n)"""
    return [[p * math.exp(-v * h) for p, v in zip(row, nu, strict=True)] for row, h in zip(probs, entropy, strict=True)]


def _column_root(column: Row, row_factors: Row, entropy: Row, count: float) -> float:
    def surplus(v: float) -> float:
        terms = [p * a * math.exp(-v * h) for p, a, h in zip(column, row_factors, entropy, strict=True)]
        return math.log(sum(terms)) - math.log(count)

    low, high = -1.0, 1.0
    while surplus(low) < 0:
        low *= 2
    while surplus(high) > 0:
        high *= 2
    return float(brentq(surplus, low, high, xtol=1e-13, rtol=1e-14))


class LiteralDARP:
    """The whole pool in a list; `target` holds counts."""

    def __init__(self, num_unlabeled: int, target: Row, *, iterations: int = 10, delta: float = 2.0) -> None:
        self.target, self.iterations, self.delta = target, iterations, delta
        self.store = [[1 / len(target)] * len(target) for _ in range(num_unlabeled)]
        self.refined: Rows | None = None

    def __call__(self, probs: Sequence[Row], index: Sequence[int]) -> Rows:
        for row, i in zip(probs, index, strict=True):
            self.store[i] = list(row)
        if self.refined is None:
            return [list(row) for row in probs]
        return [self.refined[i] for i in index]

    def refresh(self) -> None:
        candidates = remove_noise(self.store, self.target, self.delta)
        self.refined = refine(candidates, self.target, self.iterations)


def solve_mix(confusion: Sequence[Row], mean: Row) -> list[float]:
    """q = A^-1 mean, where row y of `confusion` is column y of A."""
    solution: list[float] = np.linalg.solve(np.array(confusion).T, np.array(mean)).tolist()
    return solution
