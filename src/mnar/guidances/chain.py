"""Several guidances, one after the other: each rectifies what the one before it made."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from mnar.guidances.guidance import Guidance


class Chain(Guidance):
    """`Chain(a, b)(p, i)` is `b(a(p, i), i)`."""

    def __init__(self, *stages: Guidance) -> None:
        if not stages:
            raise ValueError("Chain needs at least one guidance, e.g. Chain(NoGuidance(task))")
        super().__init__(stages[0].task)
        self.stages: Iterable[Guidance] = nn.ModuleList(stages)  # type: ignore[assignment]

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        for stage in self.stages:
            probs = stage(probs, index)
        return probs

    def logs(self) -> dict[str, Tensor]:
        return {name: value for stage in self.stages for name, value in stage.logs().items()}

    def matrices(self) -> dict[str, Tensor]:
        return {name: value for stage in self.stages for name, value in stage.matrices().items()}
