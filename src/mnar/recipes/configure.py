"""What a command line makes of a recipe, and of what was chosen beside it: a complete configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mnar.config import RunConfig, default_guidance_of, parse_setting
from mnar.guidances import GUIDANCES, NoGuidance, class_of
from mnar.learners import LEARNERS
from mnar.recipes.defaults import (
    DATASET_DEFAULTS,
    DEFAULTS,
    GUIDANCE_DEFAULTS,
    LEARNER_DEFAULTS,
    PAIR_DEFAULTS,
    PROTOCOL_SIZES,
    Sections,
)
from mnar.recipes.recipe import Recipe
from mnar.recipes.tables import RECIPES, no_recipe
from mnar.training.options import TrainOptions


def configure(
    *,
    recipe: str | None = None,
    dataset: str | None = None,
    data: str | None = None,
    protocol: str | None = None,
    learner: str | None = None,
    guidance: str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A complete configuration.

    The data set's defaults, then the learner's, then the recipe, then what was chosen by name, then --set. `defaults`
    come after the data set's.
    """
    cell = _recipe(recipe).sections if recipe else {}
    parsed = [parse_setting(setting) for setting in settings]
    for section, option, value in parsed:
        if (section, option) == ("train", "iterations") and iterations not in (None, value):
            raise ValueError(f"--iterations is {iterations}, --set train.iterations={value}; leave one of them out")
    chosen: Sections = {"dataset": dataset, "protocol": protocol, "learner": learner, "guidance": guidance}
    chosen |= {section: value for section, option, value in parsed if option == "name"}
    chosen = {section: _named(section, str(name)) for section, name in chosen.items() if name}

    data_name = _name_of("dataset", DEFAULTS, cell, chosen)
    config = _merge(_merge(DEFAULTS, DATASET_DEFAULTS.get(data_name, {})), defaults or {})
    learner_name = _name_of("learner", config, cell, chosen)
    config = _merge(config, LEARNER_DEFAULTS.get(learner_name, {}))
    config = _merge(config, PAIR_DEFAULTS.get((learner_name, data_name), {}))
    config = _merge(_merge(config, cell), chosen)
    _size_protocol(config)
    _guide(
        config, is_named="guidance" in chosen or "guidance" in cell, learner_is_named="learner" in {**cell, **chosen}
    )
    if data is not None:
        config = _merge(config, {"dataset": {"root": str(Path(data).resolve())}})  # --resume works from any folder
    if iterations is not None:
        config = _merge(config, {"train": {"iterations": iterations}})
    if seed is not None:
        config["seed"] = seed
    for section, option, value in parsed:
        if option != "name":
            config = _merge(config, {section: _nested(option, value)})
    _size_batches(config)
    if config["learner"].get("encoder"):
        config["learner"]["encoder"] = str(Path(config["learner"]["encoder"]).resolve())
    return RunConfig.from_dict(config)


def _named(section: str, name: str) -> Sections:
    """A part by its name; for guidances also a chain such as "distribution_alignment+prg", first things first."""
    first, *further = [part.strip() for part in name.split("+")] if section == "guidance" else [name]
    part: Sections = {"name": first}
    for name in further:
        part = {"name": name, "preceded_by": part}
    return part


def _name_of(section: str, *layers: Mapping[str, Any]) -> str:
    """What a section will be, from the last layer that says."""
    return next(str(layer[section]["name"]) for layer in reversed(layers) if section in layer)


def _size_protocol(config: Sections) -> None:
    if "protocol" in config:
        sizes = PROTOCOL_SIZES.get(config["dataset"]["name"], {}).get(config["protocol"]["name"], {})
        config["protocol"] = {**sizes, **config["protocol"]}


def _guide(config: Sections, *, is_named: bool, learner_is_named: bool) -> None:
    """A learner named alone is meant as its paper has it; a guidance named beside it comes after what it has, unless
    that is an alignment and so is this.
    """
    learner, guidance = config["learner"]["name"], config["guidance"]
    own = default_guidance_of(learner)
    if not is_named and learner_is_named:
        guidance = own
    elif (
        own["name"] != "none" and guidance["name"] != "none" and "preceded_by" not in guidance and not _aligns(guidance)
    ):
        guidance = {**guidance, "preceded_by": own}
    config["guidance"] = _with_options_of(learner, config["dataset"]["name"], guidance)


def _aligns(guidance: Sections) -> bool:
    make = GUIDANCES.get(guidance["name"], NoGuidance)
    options = {**getattr(make, "keywords", {}), **guidance}
    return class_of(make).aligns or bool(options.get("align"))  # CReST does if it is told to


def _with_options_of(learner: str, dataset: str, guidance: Sections) -> Sections:
    """Each guidance of a chain as data set and learner want it, where nobody says otherwise."""
    own, wanted = default_guidance_of(learner), LEARNERS[learner].guidance_options if learner in LEARNERS else {}
    options = {**GUIDANCE_DEFAULTS.get((guidance["name"], dataset), {}), **wanted.get(guidance["name"], {})}
    options |= own if guidance["name"] == own["name"] else {}
    after = (
        {"preceded_by": _with_options_of(learner, dataset, guidance["preceded_by"])}
        if "preceded_by" in guidance
        else {}
    )
    return {**options, **guidance, **after}


def _size_batches(config: Sections) -> None:
    """Unlabelled samples in the learner's own proportion to the labelled ones, where nobody said how many."""
    train, learner = config.setdefault("train", {}), LEARNERS.get(config["learner"]["name"])
    if learner and "batch_unlabeled" not in train:
        batch_labeled = train.get("batch_labeled", TrainOptions.batch_labeled)
        if isinstance(batch_labeled, int):  # what is not will be refused by its name
            config["train"] = {**train, "batch_unlabeled": learner.unlabeled_ratio * batch_labeled}


def _nested(option: str, value: Any) -> Sections:
    """ "preceded_by.window" is the option `window` of the guidance `preceded_by`."""
    first, _, rest = option.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise no_recipe(name, list(RECIPES))
    return RECIPES[name]


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Sections:
    """`above` over `below`. Another part in a section brings its own options, so those below it go."""
    merged = dict(below)
    for section, options in above.items():
        old = below.get(section)
        if isinstance(old, Mapping) and isinstance(options, Mapping):
            same_part = options.get("name", old.get("name")) == old.get("name")
            merged[section] = _merge(old, options) if same_part else dict(options)
        else:
            merged[section] = options
    return merged
