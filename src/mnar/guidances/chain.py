"""A chain of guidances: each guidance rectifies the pseudo-labels that the guidance before it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from mnar.guidances.guidance import Guidance
from mnar.types import Predict, Selection

ONE_AT_MOST = ("supervised", "refresh", "relabel")  # hooks that only one stage may use, as results do not combine


class Chain(Guidance):
    """A guidance that applies its stages in order: `Chain(a, b)(p, i)` is `b(a(p, i), i)`.

    Hooks go through the stages in the same order, except those in ONE_AT_MOST, which only one stage may need. A chain
    inside a chain is replaced by its stages.
    """

    paper = "several"

    def __init__(self, *stages: Guidance) -> None:
        if not stages:
            raise ValueError("Chain needs at least one guidance, e.g. Chain(NoGuidance(task))")
        stages = tuple(part for stage in stages for part in (stage.stages if isinstance(stage, Chain) else [stage]))
        super().__init__(stages[0].task)
        sizes = {(stage.task.num_classes, stage.task.num_unlabeled) for stage in stages}
        if len(sizes) > 1:
            raise ValueError(
                "the guidances of a chain must have the same task, but some have other tasks: "
                f"(num_classes, num_unlabeled) is {sorted(sizes)}; give every guidance the same Task"
            )
        self.stages: Iterable[Guidance] = nn.ModuleList(stages)  # type: ignore[assignment]
        self._of_hook = {hook: _stage_with(hook, stages) for hook in ONE_AT_MOST}
        if {"relabel", "supervised"} <= self.needs:
            names = " and ".join(type(stage).__name__ for stage in stages if stage.needs & {"relabel", "supervised"})
            raise ValueError(
                f"{names} cannot be chained: one changes the labelled set between generations, the other uses only "
                "the given labels; choose one of them"
            )
        self.trains_weak_views = any(stage.trains_weak_views for stage in stages)
        self.generations = self._of_hook["relabel"].generations
        self.refresh_every = self._of_hook["refresh"].refresh_every
        self.refresh_from = self._of_hook["refresh"].refresh_from

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset[str]().union(*(stage.needs for stage in self.stages))

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        for stage in self.stages:
            probs = stage(probs, index)
        return probs

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        for stage in self.stages:
            stage.prepare(samples, view)

    def watch(self, network: nn.Module) -> nn.Module:
        for stage in self.stages:
            network = stage.watch(network)
        return network

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        return self._of_hook["supervised"].supervised(logits, y, logits_weak)

    def threshold(self, q: Tensor, tau: float | Tensor) -> float | Tensor:
        for stage in self.stages:
            tau = stage.threshold(q, tau)
        return tau

    def pool_logits(self, logits: Tensor) -> Tensor:
        for stage in self.stages:
            logits = stage.pool_logits(logits)
        return logits

    def extra_loss(self, logits: Sequence[Tensor], probs: Tensor, mask: Tensor) -> Tensor | None:
        losses = [loss for stage in self.stages if (loss := stage.extra_loss(logits, probs, mask)) is not None]
        return torch.stack(losses).sum() if losses else None

    def refresh(self) -> None:
        self._of_hook["refresh"].refresh()

    def relabel(self, predict: Predict, generation: int) -> Selection | None:
        return self._of_hook["relabel"].relabel(predict, generation)

    def test_bias(self, network: nn.Module) -> Tensor | None:
        biases = [bias for stage in self.stages if (bias := stage.test_bias(network)) is not None]
        return torch.stack(biases).sum(0) if biases else None

    def estimates(self) -> dict[str, Tensor]:
        return self._named([stage.estimates() for stage in self.stages])

    def logs(self) -> dict[str, Tensor]:
        return self._named([stage.logs() for stage in self.stages])

    def matrices(self) -> dict[str, Tensor]:
        return self._named([stage.matrices() for stage in self.stages])

    def _named(self, of_stages: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Merge the dictionaries of all stages, and number a name that an earlier stage has, e.g. "transitions_2"."""
        named: dict[str, Tensor] = {}
        for number, of_stage in enumerate(of_stages, start=1):
            for name, value in of_stage.items():
                named[f"{name}_{number}" if name in named else name] = value
        return named


def _stage_with(hook: str, stages: tuple[Guidance, ...]) -> Guidance:
    """Return the stage that needs the hook; if none does, the first stage, whose hook has the default behaviour."""
    having = [stage for stage in stages if hook in stage.needs]
    if len(having) > 1:
        names = [type(stage).__name__ for stage in having]
        raise ValueError(f"{' and '.join(names)} cannot be chained: each wants to decide {hook!r}; choose one of them")
    return having[0] if having else stages[0]
