"""PRG and PRG^Last, literally: a dict, loops over samples, a list of the last batches. Slow on purpose.

An oracle for `mnar.guidances.PRG`, written from Algorithms 1 and 2 of "Towards Semi-supervised Learning with
Non-random Missing Labels" and from the fixed readings on the method's page. Everything is float64. The options
`smoothing` and `pool_shares` follow the formulas on the pages prg_smooth and prg.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

SMALLEST_SHARE = 1e-12  # of a class that nothing in the window was predicted as


class LiteralPRG:
    """The same options, the same reports (`transitions`, `class_usage`, `guidance_matrix()`) as PRG."""

    def __init__(
        self,
        num_classes: int,
        *,
        alpha: float = 1.0,
        window: int = 128,
        last: bool = False,
        rescale: bool = True,
        steps: int = 1,
        usage: str = "soft",
        empty_row: str = "onehot",
        smoothing: float = 0.0,
        pool_shares: Sequence[float] | None = None,
        batch: int = 0,
    ) -> None:
        self.num_classes = num_classes
        self.alpha = alpha
        self.window = window
        self.last = last
        self.rescale = rescale
        self.steps = steps
        self.usage = usage
        self.empty_row = empty_row
        self.smoothing = smoothing
        self.pool_shares = pool_shares
        self.batch = batch  # size of a full batch; only the smoothing needs it
        self.bank: dict[int, int] = {}  # l: no entry before the first visit
        self.tracked_transitions: list[Matrix] = []  # C^(n), one per batch, oldest first
        self.tracked_usage: list[Vector] = []

    def __call__(self, probs: npt.ArrayLike, index: npt.ArrayLike) -> Matrix:
        samples = list(np.asarray(probs, dtype=np.float64))
        indices = [int(i) for i in np.asarray(index)]
        predictions = [int(np.argmax(p)) for p in samples]
        if self.last:
            rows = [self.bank.get(i) for i in indices]  # all read before the batch changes the bank
            rectified = self.guide(samples, rows)
            self.track(samples, indices, predictions)
        else:
            self.track(samples, indices, predictions)
            rectified = self.guide(samples, predictions)
        return np.stack(rectified)

    def track(self, samples: list[Vector], indices: list[int], predictions: list[int]) -> None:
        transitions = np.zeros((self.num_classes, self.num_classes))
        for i, prediction in zip(indices, predictions, strict=True):
            if i in self.bank and self.bank[i] != prediction:
                transitions[self.bank[i], prediction] += 1  # Eq. (track)
            self.bank[i] = prediction

        usage = np.zeros(self.num_classes)
        for p, prediction in zip(samples, predictions, strict=True):
            if self.usage == "soft":
                usage += p / len(samples)
            else:
                usage[prediction] += 1

        self.tracked_transitions = [*self.tracked_transitions, transitions][-self.window :]
        self.tracked_usage = [*self.tracked_usage, usage][-self.window :]

    def guide(self, samples: list[Vector], rows: Sequence[int | None]) -> list[Vector]:
        walk = np.linalg.matrix_power(self.guidance_matrix(), self.steps)
        return [self.rectify(p, row, walk) for p, row in zip(samples, rows, strict=True)]

    def rectify(self, p: Vector, row: int | None, walk: Matrix) -> Vector:
        if row is None:
            return p
        if self.empty_row == "identity" and self.transitions[row].sum() == 0:
            return p
        product = walk[row] * p
        mass = product.sum()
        return product / mass if mass > 0 else p  # Eq. (de3)

    @property
    def transitions(self) -> Matrix:
        total = np.zeros((self.num_classes, self.num_classes))
        for transitions in self.tracked_transitions:
            total += transitions
        return total

    @property
    def class_usage(self) -> Vector:
        total = np.zeros(self.num_classes)
        for usage in self.tracked_usage:
            total += usage
        return total / max(len(self.tracked_usage), 1)

    def guidance_matrix(self) -> Matrix:
        """H', before the power `steps`."""
        transitions, usage = self.transitions, self.class_usage
        visits = self.window * self.batch / self.num_classes  # of a class with the average share, within the window
        added = self.smoothing * visits / (self.num_classes - 1)  # b, for every pair of classes
        matrix = np.zeros((self.num_classes, self.num_classes))
        for i in range(self.num_classes):
            moves_away = transitions[i].sum()
            for j in range(self.num_classes):
                if i == j:
                    matrix[i, j] = self.alpha / (self.num_classes - 1)  # after the rows are normalised
                elif moves_away + added > 0:
                    matrix[i, j] = (transitions[i, j] + added) / (moves_away + added * (self.num_classes - 1))  # H
        if not self.rescale or usage.sum() == 0:
            return matrix
        for j in range(self.num_classes):
            smallest = 1 / (self.window * self.batch) if self.smoothing > 0 else SMALLEST_SHARE
            matrix[:, j] /= max(usage[j] / usage.sum(), smallest)  # Eq. (sca)
            matrix[:, j] *= 1 if self.pool_shares is None else self.pool_shares[j]
        return matrix
