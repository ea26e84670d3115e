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
        sizes = {(stage.task.num_classes, stage.task.num_unlabeled) for stage in stages}
        if len(sizes) > 1:
            raise ValueError(f"the guidances of a chain have other tasks: (classes, samples) {sorted(sizes)}; give one")
        self.stages: Iterable[Guidance] = nn.ModuleList(stages)  # type: ignore[assignment]

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        for stage in self.stages:
            probs = stage(probs, index)
        return probs

    def logs(self) -> dict[str, Tensor]:
        return self._named([stage.logs() for stage in self.stages])

    def matrices(self) -> dict[str, Tensor]:
        return self._named([stage.matrices() for stage in self.stages])

    def _named(self, of_stages: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """All of them by name; a name that a stage before has already gets the number of its own."""
        named: dict[str, Tensor] = {}
        for number, of_stage in enumerate(of_stages, start=1):
            for name, value in of_stage.items():
                named[f"{name}_{number}" if name in named else name] = value
        return named
