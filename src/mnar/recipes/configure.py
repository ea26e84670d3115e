"""Build a complete configuration from a recipe, the options of the command line and the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mnar.config import (
    FILE_OPTIONS,
    OWN_DATA,
    PUBLISHED,
    RunConfig,
    default_guidance_of,
    guidance_chain,
    options_of,
    parse_setting,
)
from mnar.datasets import DATASETS
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
from mnar.recipes.schedules import schedule_sections
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
    schedule: str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return a complete configuration.

    Later layers override earlier ones: DEFAULTS, the defaults of the data set, the argument `defaults`, the defaults of
    the learner and of the pair of learner and data set, the recipe, the parts chosen by name, the named `schedule`, the
    other arguments, and finally `settings` (the --set options).
    """
    cell = _recipe(recipe).sections if recipe else {}
    parsed = [parse_setting(setting) for setting in settings]
    for section, option, value in parsed:
        if (section, option) == ("train", "iterations") and iterations not in (None, value):
            raise ValueError(
                f"--iterations is {iterations}, but --set train.iterations is {value}; leave one of them out"
            )
    arguments = {"dataset": dataset, "protocol": protocol, "learner": learner, "guidance": guidance}
    named = {section: name for section, name in arguments.items() if name is not None}
    named |= {section: str(value) for section, option, value in parsed if option == "name"}
    chosen: Sections = {section: _section_from_name(section, name) for section, name in named.items()}

    data_name = _name_of("dataset", DEFAULTS, cell, chosen)
    if data_name in DATASETS and data_name not in DATASET_DEFAULTS:
        raise ValueError(
            f"the data set {data_name!r} has no default protocol and model; add them to DATASET_DEFAULTS in "
            "mnar/recipes/defaults.py"
        )
    config = _merge(_merge(DEFAULTS, DATASET_DEFAULTS.get(data_name, {})), defaults or {})
    learner_name = _name_of("learner", config, cell, chosen)
    config = _merge(config, LEARNER_DEFAULTS.get(learner_name, {}))
    config = _merge(config, PAIR_DEFAULTS.get((learner_name, data_name), {}))
    config = _merge(_merge(config, cell), chosen)
    config = _with_protocol_sizes(config)
    own_guidance = _own_guidance(learner_name, _recipe(recipe) if recipe else None)
    config = _with_guidance(config, own_guidance, named={**cell, **chosen}, parsed=parsed)
    config = _with_options_of_guidance(config)
    config = _with_schedule(config, PUBLISHED if schedule is None else schedule, parsed)
    if data is not None:
        config = _merge(config, {"dataset": {"root": data}})
    if seed is not None:
        config["seed"] = seed
    config = _with_given(config, iterations, parsed)
    return RunConfig.from_dict(_with_absolute_paths(_with_unlabeled_batch_size(config)))


def with_given_options(
    config: RunConfig, *, schedule: str | None = None, iterations: int | None = None, settings: Iterable[str] = ()
) -> RunConfig:
    """Return the configuration of a run with the options that the user gave, and with the run's own values elsewhere.

    A run has the options that the user gave if nothing changes (`RunConfig.differences`).
    """
    parsed = [parse_setting(setting) for setting in settings]
    given: Sections = {} if schedule is None else {"schedule": schedule}
    given |= {section: _section_from_name(section, str(name)) for section, option, name in parsed if option == "name"}
    return RunConfig.from_dict(_with_absolute_paths(_with_given(_merge(config.to_dict(), given), iterations, parsed)))


def _section_from_name(section: str, name: str) -> Sections:
    """Return the section of a part by its name.

    A guidance may be a chain such as "distribution_alignment+prg": the guidances act from left to right.
    """
    first, *further = [part.strip() for part in name.split("+")] if section == "guidance" else [name]
    part: Sections = {"name": first}
    for next_name in further:
        part = {"name": next_name, "preceded_by": part}
    return part


def _name_of(section: str, *layers: Mapping[str, Any]) -> str:
    """Return the name of the part in a section: that of the last layer which has the section."""
    return next(str(layer[section]["name"]) for layer in reversed(layers) if section in layer)


def _with_protocol_sizes(config: Sections) -> Sections:
    """Set the class sizes of the protocol to fit the data set, unless they are given."""
    if "protocol" not in config:
        return config
    sizes = PROTOCOL_SIZES.get(config["dataset"]["name"], {}).get(config["protocol"]["name"], {})
    return {**config, "protocol": {**sizes, **config["protocol"]}}


def _own_guidance(learner: str, recipe: Recipe | None) -> Sections:
    """Return the guidance of the learner's own paper. A recipe may change its options if the learner is its own."""
    changed = recipe.own_guidance if recipe and recipe.sections["learner"]["name"] == learner else None
    return {**default_guidance_of(learner), **(changed or {})}


def _with_guidance(
    config: Sections, own_guidance: Sections, *, named: Mapping[str, Any], parsed: Iterable[tuple[str, str, Any]]
) -> Sections:
    """Choose the guidance or the chain of guidances, and complete the options.

    `named` are the sections that the user named, and `parsed` are the --set options, which may switch an alignment on.

    A learner that is named without a guidance gets `own_guidance`, the guidance of its own paper. A guidance that is
    named acts after `own_guidance`, or replaces it if the named guidance corrects class shares itself
    (`Guidance.aligns`). A chain is used as given.
    """
    guidance = config["guidance"]
    is_chain = "preceded_by" in guidance
    has_two = own_guidance["name"] != "none" and guidance["name"] != "none"
    if "guidance" not in named and "learner" in named:
        guidance = own_guidance
    elif has_two and not is_chain and not _aligns({**guidance, **_options_of(parsed, "guidance")}):
        guidance = {**guidance, "preceded_by": own_guidance}
    return {**config, "guidance": _with_options_of(config, own_guidance, guidance)}


def _options_of(parsed: Iterable[tuple[str, str, Any]], section: str) -> dict[str, Any]:
    return {option: value for of, option, value in parsed if of == section}


def _with_options_of_guidance(config: Sections) -> Sections:
    """Set the options of the learner that the released code of a guidance has, unless the recipe has others.

    The defaults for own data were measured without these options.
    """
    if config["dataset"]["name"] == OWN_DATA:
        return config
    learner = LEARNERS.get(config["learner"]["name"])
    offered = options_of("learner", learner) if learner is not None else {}
    for part in guidance_chain(config["guidance"]):
        options = class_of(GUIDANCES.get(part["name"], NoGuidance)).learner_options
        if options.keys() <= offered.keys():  # a part of them could do harm, such as a threshold of 0 for hard targets
            config = _merge(config, {"learner": {**options, **config["learner"]}})
    return config


def _aligns(guidance: Sections) -> bool:
    make = GUIDANCES.get(guidance["name"], NoGuidance)
    options = {**getattr(make, "keywords", {}), **guidance}
    return class_of(make).aligns or bool(options.get("align"))  # CReST corrects class shares only with align=true


def _with_options_of(config: Sections, own_guidance: Sections, guidance: Sections) -> Sections:
    """Add to each guidance of a chain the default options for this data set and learner. Given options win."""
    name, learner = guidance["name"], LEARNERS.get(config["learner"]["name"])
    of_learner = learner.guidance_options if learner is not None else {}
    options = {**GUIDANCE_DEFAULTS.get((name, config["dataset"]["name"]), {}), **of_learner.get(name, {})}
    options |= own_guidance if name == own_guidance["name"] else {}
    before = (
        {"preceded_by": _with_options_of(config, own_guidance, guidance["preceded_by"])}
        if "preceded_by" in guidance
        else {}
    )
    return {**options, **guidance, **before}


def _with_schedule(config: Sections, name: str, parsed: Iterable[tuple[str, str, Any]]) -> Sections:
    """Set the options of a named schedule. `parsed` are the --set options, which may name the optimiser."""
    chosen = [value for section, option, value in parsed if (section, option) == ("train", "optimizer")]
    changed = schedule_sections(name, config, chosen[-1] if chosen else None)
    if name == PUBLISHED:
        return _merge(config, changed)
    if config["dataset"]["name"] == OWN_DATA:
        raise ValueError(
            f"the schedule {name!r} replaces that of a published recipe, which your own data do not have: their length "
            "and learning rate are chosen for the data. Leave the schedule out, or set single options, e.g. --set "
            "train.schedule=linear"
        )
    return {**_merge(config, changed), "schedule": name}


def _with_given(config: Sections, iterations: int | None, parsed: Iterable[tuple[str, str, Any]]) -> Sections:
    """Set --iterations and the --set options, except the names of parts."""
    if iterations is not None:
        config = _merge(config, {"train": {"iterations": iterations}})
    for section, option, value in parsed:
        if option != "name":
            config = _merge(config, {section: _nested(option, value)})
    return config


def _with_unlabeled_batch_size(config: Sections) -> Sections:
    """Set the unlabelled batch size, unless it is given: the labelled batch size times the ratio of the learner."""
    train, learner = config.get("train", {}), LEARNERS.get(config["learner"]["name"])
    batch_labeled = train.get("batch_labeled", TrainOptions.batch_labeled)
    is_number = isinstance(batch_labeled, int)  # otherwise RunConfig raises an error that names the option
    if learner is None or "batch_unlabeled" in train or not is_number:
        return {**config, "train": train}
    return {**config, "train": {**train, "batch_unlabeled": learner.unlabeled_ratio * batch_labeled}}


def _with_absolute_paths(config: Sections) -> Sections:
    """Make the paths of the user's files absolute, so that --resume works from any folder."""
    for section, option in (name.split(".") for name in FILE_OPTIONS):
        path = config.get(section, {}).get(option)
        if isinstance(path, str | Path):  # `RunConfig` refuses other values
            config = _merge(config, {section: {option: str(Path(path).resolve())}})
    return config


def _nested(option: str, value: Any) -> Sections:
    """Return an option as nested sections; "preceded_by.window" is `window` of the guidance that acts before."""
    first, _, rest = option.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise no_recipe(name, list(RECIPES))
    return RECIPES[name]


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Sections:
    """Merge sections; `above` overrides `below`. If `above` names another part, the old options are dropped."""
    merged = dict(below)
    for section, options in above.items():
        old = below.get(section)
        if isinstance(old, Mapping) and isinstance(options, Mapping):
            same_part = options.get("name", old.get("name")) == old.get("name")
            merged[section] = _merge(old, options) if same_part else dict(options)
        else:
            merged[section] = options
    return merged
