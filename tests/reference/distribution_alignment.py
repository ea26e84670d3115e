"""Distribution alignment, literally: a list of all batch means so far, and loops over classes. Slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[float]

SMALLEST_SHARE = 1e-6


class LiteralAlignment:
    """`target` holds numbers in proportion to the shares."""

    def __init__(self, target: Row, *, window: int = 128, ema: float | None = None, update: str = "after") -> None:
        self.target = [share / sum(target) for share in target]
        self.window = window
        self.ema = ema
        self.update = update
        self.means: list[list[float]] = []  # of the unaligned predictions of each batch, oldest first

    def __call__(self, probs: Sequence[Row]) -> list[list[float]]:
        mean = [sum(column) / len(probs) for column in zip(*probs, strict=True)]
        if self.update == "before":
            self.means.append(mean)
        running = self.running_prediction()
        aligned = [self.align(p, running) for p in probs]
        if self.update == "after":
            self.means.append(mean)
        return aligned

    def running_prediction(self) -> list[float]:
        if not self.means:
            return [1 / len(self.target)] * len(self.target)
        if self.ema is None:
            weights = [float(age < self.window) for age in range(len(self.means))]
        else:
            weights = [self.ema**age for age in range(len(self.means))]
        total = [0.0] * len(self.target)
        for weight, mean in zip(weights, reversed(self.means), strict=True):
            for c, share in enumerate(mean):
                total[c] += weight * share
        return [share / sum(total) for share in total]

    def align(self, p: Row, running: Row) -> list[float]:
        aligned = []
        for share, wanted, predicted in zip(p, self.target, running, strict=True):
            aligned.append(share * (wanted + SMALLEST_SHARE) / (predicted + SMALLEST_SHARE))
        return [share / sum(aligned) for share in aligned]
