"""Named schedules (`--schedule NAME`): options that replace those of a recipe, for every learner and data set.

"published" changes nothing: a recipe has the schedule of its paper. "fast" is for short trainings, and
"fast_pretrained" starts them with a network that SimCLR has trained without labels. Muon has its own
learning rate and weight decay with both, also if the user chooses this optimiser, because rates of SGD do not suit it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mnar.config import PUBLISHED, guidance_chain, options_of
from mnar.guidances import GUIDANCES, class_of
from mnar.learners import LEARNERS
from mnar.models import MODELS
from mnar.recipes.defaults import Sections
from mnar.training.options import TrainOptions

FAST, FAST_PRETRAINED = "fast", "fast_pretrained"
FAST_ITERATIONS = 2**17  # for a recipe with more steps; a shorter recipe keeps its own length
PRETRAINING_ITERATIONS = 2**14
# Any optimiser: the learning rate falls to zero, and the average covers the same share of the steps at every length.
FAST_FOR_ALL: Sections = {"schedule": "linear", "ema": "auto"}
# Muon replaces SGD, which the published recipes of images use. docs/log.md has the ladder that led to these values.
FAST_INSTEAD_OF_SGD = "muon"
FAST_WITH_SGD = ("mixmatch",)  # learners that keep SGD: 7 points better than Muon on digits (14 seeds)
# The rates that belong to an optimiser which a schedule or the user chooses. Rates of SGD or Adam do not suit Muon.
PUBLISHED_BY_OPTIMIZER: dict[str, Sections] = {"muon": {"lr": 0.02, "weight_decay": 0.025}}
FAST_BY_OPTIMIZER: dict[str, Sections] = {
    **PUBLISHED_BY_OPTIMIZER,
    "sgd": {"lr": 0.1},  # if the learner keeps SGD, or the user chooses it; 0.1 instead of 0.03
}


class Schedule(NamedTuple):
    """A named schedule."""

    about: str
    # the sections of a recipe, and the optimiser that the user chose -> the options that change
    sections: Callable[[Mapping[str, Any], str | None], Sections]


def _published(config: Mapping[str, Any], optimizer: str | None) -> Sections:
    """Change nothing, unless the user chose an optimiser for which the recipe's rates are not meant."""
    train = config.get("train", {})
    is_other = optimizer != train.get("optimizer", TrainOptions.optimizer)
    return {"train": _rates_of(optimizer, train, PUBLISHED_BY_OPTIMIZER)} if is_other else {}


def _fast(config: Mapping[str, Any], optimizer: str | None) -> Sections:
    return {
        "train": _fast_training(config["learner"]["name"], config.get("train", {}), optimizer),
        # a step takes a fifth less time, and the accuracy stays the same
        "learner": {"weak_gradient": False} if _can_leave_out_weak_views(config) else {},
    }


def _fast_pretrained(config: Mapping[str, Any], optimizer: str | None) -> Sections:
    sections = _fast(config, optimizer)
    iterations = config.get("train", {}).get("iterations", TrainOptions.iterations)
    # A recipe with a shorter training, such as that of digits, has a first stage of the same length.
    is_short = isinstance(iterations, int) and iterations < PRETRAINING_ITERATIONS
    return {
        **sections,
        "train": {**sections["train"], "pretraining": iterations if is_short else PRETRAINING_ITERATIONS},
    }


def _fast_training(learner: str, train: Mapping[str, Any], optimizer: str | None) -> Sections:
    iterations = train.get("iterations", TrainOptions.iterations)
    # A value that is not a number is refused later, with the name of the option.
    is_long = isinstance(iterations, int) and iterations > FAST_ITERATIONS
    of_recipe = train.get("optimizer", TrainOptions.optimizer)
    uses_muon = of_recipe == "sgd" and learner not in FAST_WITH_SGD
    optimizer = optimizer or (FAST_INSTEAD_OF_SGD if uses_muon else of_recipe)
    rates = _rates_of(optimizer, train, FAST_BY_OPTIMIZER)
    length = {"iterations": FAST_ITERATIONS} if is_long else {}
    return {**FAST_FOR_ALL, "optimizer": optimizer, **rates, **length}


def _rates_of(optimizer: Any, train: Mapping[str, Any], by_optimizer: Mapping[str, Sections]) -> Sections:
    """The learning rate and weight decay for an optimiser. A learner's own weight decay stays, such as that of UPS."""
    if not isinstance(optimizer, str):  # refused later, with the name of the option
        return {}
    rates = by_optimizer.get(optimizer, {})
    return {name: value for name, value in rates.items() if name == "lr" or name not in train}


def _can_leave_out_weak_views(config: Mapping[str, Any]) -> bool:
    """Whether learner and network can do it, and no guidance changes the labelled loss, which may train weak views."""
    learner, model = LEARNERS.get(config["learner"]["name"]), MODELS.get(config["model"]["name"])
    guidances = [GUIDANCES.get(part["name"]) for part in guidance_chain(config["guidance"])]
    if learner is None or "weak_gradient" not in options_of("learner", learner):
        return False
    if not getattr(model, "takes_rows", False):
        return False
    return not any(make is not None and "supervised" in class_of(make).needs for make in guidances)


SCHEDULES: dict[str, Schedule] = {
    PUBLISHED: Schedule("the schedule of the recipe's paper, the default", _published),
    FAST: Schedule(
        f"for short trainings: at most {FAST_ITERATIONS:,} steps, Muon instead of SGD, a learning rate that falls to "
        "zero, a moving average that fits the length, and weak views without a gradient",
        _fast,
    ),
    FAST_PRETRAINED: Schedule(
        f"fast, after SimCLR has trained the network without labels for at most {PRETRAINING_ITERATIONS:,} steps",
        _fast_pretrained,
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
