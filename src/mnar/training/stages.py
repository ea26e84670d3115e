"""Batch sizes that grow in a few stages of the training (`train.batch_stages`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_STAGES = 8  # each stage compiles the step and captures a CUDA graph, which takes seconds


class Stage(NamedTuple):
    """Consecutive steps with the same batch sizes."""

    end: int  # the number of steps that are done when the stage ends
    batch_labeled: int
    batch_unlabeled: int

    @property
    def sizes(self) -> tuple[int, int]:
        return self.batch_labeled, self.batch_unlabeled


def part_end(part: int, num_parts: int, num_steps: int) -> int:
    """The last step of a part, if steps are divided into parts whose lengths differ by at most one step."""
    return (part + 1) * num_steps // num_parts


def batch_size(full_size: int, factor: float) -> int:
    """The size of a batch in a stage with this factor; 0 if the factor is too small."""
    return round(factor * full_size)


def plan_stages(
    factors: Sequence[float], *, iterations: int, batch_labeled: int, batch_unlabeled: int, generations: int = 1
) -> tuple[Stage, ...]:
    """Return the stages of a whole training. The steps of each generation are divided equally among the factors.

    Neighbouring stages with the same batch sizes become one stage.

    batch_labeled, batch_unlabeled    the full sizes, to which a factor of 1 belongs
    """
    stages: list[Stage] = []
    for generation in range(generations):
        began, end = (part_end(number, generations, iterations) for number in (generation - 1, generation))
        if end - began < len(factors):
            remedy = "fewer factors, e.g. --set 'train.batch_stages=[1]'"
            raise ValueError(
                f"train.batch_stages has {len(factors)} stages, but generation {generation + 1} of {generations} has "
                f"{end - began} steps, and each stage needs at least one step; choose more --iterations, or {remedy}"
                if generations > 1
                else f"train.batch_stages has {len(factors)} stages, but train.iterations is {iterations}, and each "
                f"stage needs at least one step; choose more --iterations, or {remedy}"
            )
        for number, factor in enumerate(factors):
            last = began + part_end(number, len(factors), end - began)
            stage = Stage(last, max(1, batch_size(batch_labeled, factor)), batch_size(batch_unlabeled, factor))
            if stages and stages[-1].sizes == stage.sizes:
                stages[-1] = stage  # one stage, since nothing changes
            else:
                stages.append(stage)
    return tuple(stages)


def check_factors(factors: Sequence[float], batch_unlabeled: int) -> None:
    """Refuse a list of factors with which no training is possible."""
    example = "choose e.g. --set 'train.batch_stages=[0.25, 0.5, 1]'"
    if not 1 <= len(factors) <= MOST_STAGES:
        raise ValueError(
            f"train.batch_stages has {len(factors)} stages; it must have 1 to {MOST_STAGES}, because each stage "
            f"compiles the training step again; {example}"
        )
    for factor in factors:
        if batch_size(batch_unlabeled, factor) < 1:
            raise ValueError(
                f"train.batch_stages has the factor {factor:g}, with which an unlabelled batch of {batch_unlabeled} "
                f"would be empty; choose a larger factor or a larger train.batch_unlabeled"
            )
