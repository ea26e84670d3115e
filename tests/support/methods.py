"""Every learner for images, with its own guidance and with PRG: what the tests of whole steps and runs go through."""

from __future__ import annotations

from mnar.learners import LEARNERS

IMAGE_LEARNERS = [name for name, learner in LEARNERS.items() if "images" in learner.suits]
IMAGE_METHODS = [
    (name, guidance)
    for name in IMAGE_LEARNERS
    for guidance in ("default", "prg")
    if guidance == "default" or LEARNERS[name].is_guided
]
# One of ten classes has a tenth at least, so every generation has something to hand on.
SURE_UPS = (
    "learner.name=ups",
    "learner.passes=3",
    "learner.positive_threshold=0.1",
    "learner.positive_uncertainty=1",
    "learner.negative_threshold=0.1",
    "learner.negative_uncertainty=1",
    "learner.balance_minimum=5",
)


def method_settings(learner: str, guidance: str = "default") -> tuple[str, ...]:
    """As --set takes them; in generations, if at all, in three."""
    named = (*SURE_UPS, "learner.generations=3") if learner == "ups" else (f"learner.name={learner}",)
    return named if guidance == "default" else (*named, f"guidance.name={guidance}")
