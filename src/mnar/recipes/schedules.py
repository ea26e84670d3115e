"""Named schedules (`--schedule NAME`): options that replace those of a recipe, for every learner and data set.

"published" changes nothing: a recipe has the schedule of its paper. "fast" is for short trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mnar.config import PUBLISHED, guidance_chain, options_of
from mnar.guidances import GUIDANCES, class_of
from mnar.learners import LEARNERS
from mnar.recipes.defaults import Sections
from mnar.training.options import TrainOptions

FAST = "fast"
FAST_ITERATIONS = 2**17  # of a recipe with more steps; a shorter recipe keeps its own length
# Any optimiser: the learning rate falls to zero, and the average covers the same share of the steps at every length.
FAST_FOR_ALL: Sections = {"schedule": "linear", "ema": "auto"}
# SGD, which the published recipes of images use; 0.1 instead of 0.03.
FAST_FOR_SGD: Sections = {"lr": 0.1}
# SGD, too, but only where a recipe does not set the option itself, as UPS sets `weight_decay`: `warmup`,
# `labeled_view`, `batch_stages`, `optimizer`, `weight_decay`.
FAST_UNLESS_SET: Sections = {}
# False: learners with the option `weak_gradient` leave the weak views out of the backward pass.
FAST_WEAK_GRADIENT = True


class Schedule(NamedTuple):
    """A named schedule."""

    about: str
    sections: Callable[[Mapping[str, Any]], Sections]  # the sections of a recipe -> the options that change


def _published(config: Mapping[str, Any]) -> Sections:
    return {}


def _fast(config: Mapping[str, Any]) -> Sections:
    leaves_out = not FAST_WEAK_GRADIENT and _can_leave_out_weak_views(config)
    return {"train": _fast_training(config.get("train", {})), "learner": {"weak_gradient": False} if leaves_out else {}}


def _fast_training(train: Mapping[str, Any]) -> Sections:
    iterations = train.get("iterations", TrainOptions.iterations)
    # A value that is not a number is refused later, with the name of the option.
    is_long = isinstance(iterations, int) and iterations > FAST_ITERATIONS
    options = {**FAST_FOR_ALL, **({"iterations": FAST_ITERATIONS} if is_long else {})}
    if train.get("optimizer", TrainOptions.optimizer) != "sgd":  # other optimisers need another learning rate
        return options
    return {**options, **FAST_FOR_SGD, **{name: value for name, value in FAST_UNLESS_SET.items() if name not in train}}


def _can_leave_out_weak_views(config: Mapping[str, Any]) -> bool:
    """Whether the learner has the option, and no guidance changes the labelled loss, which may train weak views."""
    learner = LEARNERS.get(config["learner"]["name"])
    guidances = [GUIDANCES.get(part["name"]) for part in guidance_chain(config["guidance"])]
    if learner is None or "weak_gradient" not in options_of("learner", learner):
        return False
    return not any(make is not None and "supervised" in class_of(make).needs for make in guidances)


SCHEDULES: dict[str, Schedule] = {
    PUBLISHED: Schedule("the schedule of the recipe's paper, the default", _published),
    FAST: Schedule(
        f"for short trainings: at most {FAST_ITERATIONS:,} steps, a larger learning rate that falls to zero, and a "
        "moving average that fits the length",
        _fast,
    ),
}


def schedule_sections(name: str, config: Mapping[str, Any]) -> Sections:
    """Return the options that a schedule changes, as sections.

    config    the sections of the recipe, with the optimiser that the user chose
    """
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; choose from {list(SCHEDULES)}")
    return SCHEDULES[name].sections(config)
