"""Mean Teacher for a linear model, one sample after another, as its paper writes it: slow and literal."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.fixmatch import Row
from tests.reference.pi_model import Reference, pi_model, softmax

Weights = list[list[float]]  # a row a class, its bias at the end


def linear(weights: Weights, sample: Row) -> list[float]:
    return [sum(w * x for w, x in zip(row, [*sample, 1.0], strict=True)) for row in weights]


class MeanTeacherReference:
    """Keeps the teacher: theta' <- decay * theta' + (1 - decay) * theta."""

    def __init__(self, student: Weights, *, decay: float) -> None:
        self.teacher, self.decay = student, decay

    def update(self, student: Weights) -> None:
        self.teacher = [
            [self.decay * old + (1 - self.decay) * new for old, new in zip(*rows, strict=True)]
            for rows in zip(self.teacher, student, strict=True)
        ]

    def step(
        self,
        student: Weights,
        x: Sequence[Row],
        y: Sequence[int],
        first: Sequence[Row],
        second: Sequence[Row],
        *,
        unlabeled_weight: float,
        progress: float,
        ramp: float,
    ) -> Reference:
        """Without a guidance: the target is the teacher's prediction for the second draw."""
        return pi_model(
            [linear(student, sample) for sample in x],
            y,
            [linear(student, sample) for sample in first],
            [softmax(linear(self.teacher, sample)) for sample in second],
            unlabeled_weight=unlabeled_weight,
            progress=progress,
            ramp=ramp,
        )
