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
FAST_ITERATIONS = 2**17  # for a recipe with more steps; a shorter recipe keeps its own length
# Any optimiser: the learning rate falls to zero, and the average covers the same share of the steps at every length.
FAST_FOR_ALL: Sections = {"schedule": "linear", "ema": "auto"}
# Muon replaces SGD, which the published recipes of images use. docs/log.md has the ladder that led to these values.
FAST_INSTEAD_OF_SGD = "muon"
FAST_BY_OPTIMIZER: dict[str, Sections] = {
    "muon": {"lr": 0.02, "weight_decay": 0.025},
    "sgd": {"lr": 0.1},  # if the user chooses SGD; 0.1 instead of 0.03
}
# The value of `learner.weak_gradient`. It stays True until runs on CIFAR-10 show that False costs no accuracy.
FAST_WEAK_GRADIENT = True


class Schedule(NamedTuple):
    """A named schedule."""

    about: str
    # the sections of a recipe, and the optimiser that the user chose -> the options that change
    sections: Callable[[Mapping[str, Any], str | None], Sections]


def _published(config: Mapping[str, Any], optimizer: str | None) -> Sections:
    return {}


def _fast(config: Mapping[str, Any], optimizer: str | None) -> Sections:
    leaves_out = not FAST_WEAK_GRADIENT and _can_leave_out_weak_views(config)
    return {
        "train": _fast_training(config.get("train", {}), optimizer),
        "learner": {"weak_gradient": False} if leaves_out else {},
    }


def _fast_training(train: Mapping[str, Any], optimizer: str | None) -> Sections:
    iterations = train.get("iterations", TrainOptions.iterations)
    # A value that is not a number is refused later, with the name of the option.
    is_long = isinstance(iterations, int) and iterations > FAST_ITERATIONS
    of_recipe = train.get("optimizer", TrainOptions.optimizer)
    optimizer = optimizer or (FAST_INSTEAD_OF_SGD if of_recipe == "sgd" else of_recipe)
    if not isinstance(optimizer, str):  # refused later, with the name of the option
        return {}
    # A learner's own weight decay stays, such as that of UPS.
    rates = {
        name: value for name, value in FAST_BY_OPTIMIZER.get(optimizer, {}).items() if name == "lr" or name not in train
    }
    length = {"iterations": FAST_ITERATIONS} if is_long else {}
    return {**FAST_FOR_ALL, "optimizer": optimizer, **rates, **length}


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
        f"for short trainings: at most {FAST_ITERATIONS:,} steps, Muon instead of SGD, a learning rate that falls to "
        "zero, and a moving average that fits the length",
        _fast,
    ),
}


def schedule_sections(name: str, config: Mapping[str, Any], optimizer: str | None = None) -> Sections:
    """Return the options that a schedule changes, as sections.

    config       the sections of the recipe
    optimizer    the optimiser that the user chose, or None
    """
    if not isinstance(name, str) or name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; choose from {list(SCHEDULES)}")
    return SCHEDULES[name].sections(config, optimizer)
