"""The settings in which a run differs from its recipe. They are part of the name of the run's row."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import yaml

from mnar.bench.run_result import plain_settings
from mnar.config import PATH_OPTIONS, TABLES, RunConfig, options_of
from mnar.recipes import configure

# Options that are not part of a row's name. They change neither the method nor the setting, or the results show them in
# another place: the schedule in a column of its own, and the number of steps in the line above the tables.
NOT_NAMED = ("seed", "schedule", "train.iterations", "train.log_every", "train.eval_every", "train.save_every")


def changed_settings(recipe: str, config: RunConfig) -> tuple[str, ...]:
    """The settings in which a run differs from its recipe, as --set takes them, e.g. ("guidance.name=prg",).

    A setting that follows from another one is left out, e.g. the default options of another guidance.
    """
    values = _values(config)
    expected = _values(configure(recipe=recipe))
    changed: list[str] = []
    while True:
        settings = tuple(f"{name}={_as_text(values[name])}" for name in changed)
        with suppress(ValueError):  # some settings are valid only together with others, which follow
            expected = _values(_configure_like(config, recipe, settings))
        change = next((n for n in values if n not in changed and values[n] != expected.get(n)), None)
        if change is None:
            return settings
        changed += [change, *_needed_by(change, values)]


def named_settings(settings: Iterable[str]) -> tuple[str, ...]:
    """Those of the given --set options that are part of a row's name."""
    return tuple(setting for setting in settings if _is_named(setting.partition("=")[0].strip()))


def over_seeds(changes: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """The changed settings of the runs of a cell, given by seed. A setting that not all runs have names its seeds."""
    having: dict[str, list[str]] = {}
    for seed, settings in changes.items():
        for setting in settings:
            having.setdefault(setting, []).append(str(seed))
    return tuple(
        setting if len(seeds) == len(changes) else f"{setting} in seed {', '.join(seeds)}"
        for setting, seeds in having.items()
    )


def _values(config: RunConfig) -> dict[str, Any]:
    """The options that may be part of a row's name. An option stands before the options whose defaults it decides."""
    parts: dict[str, Any] = {f"{section}.name": getattr(config, section).full_name for section in TABLES}
    first = {**parts, "train.optimizer": config.train.optimizer}  # the optimiser decides learning rate and weight decay
    others = {name: value for name, value in plain_settings(config).items() if _is_named(name)}
    return {**first, **{name: value for name, value in others.items() if name not in first}}


def _is_named(name: str) -> bool:
    # `guidance.name` has the names of all guidances of a chain.
    is_in_chain = name.endswith(".preceded_by.name")
    return not (name.startswith("engine.") or name in (*NOT_NAMED, *PATH_OPTIONS) or is_in_chain)


def _configure_like(config: RunConfig, recipe: str, settings: Iterable[str]) -> RunConfig:
    """The recipe with these settings, and with the schedule, the number of steps and the data folder of a run."""
    root = config.dataset.options.get("root")
    return configure(
        recipe=recipe,
        schedule=config.schedule,
        iterations=config.train.iterations,
        data=None if root is None else str(root),
        settings=settings,
    )


def _needed_by(change: str, values: Mapping[str, Any]) -> list[str]:
    """The options without a default of a part that has another name, e.g. `protocol.gamma` of another protocol."""
    section, _, option = change.partition(".")
    make = TABLES[section].get(values[change]) if option == "name" else None
    if make is None:
        return []
    needed = [n for n, parameter in options_of(section, make).items() if parameter.default is inspect.Parameter.empty]
    return [name for option in needed if (name := f"{section}.{option}") in values]


def _as_text(value: Any) -> str:
    """A value as --set takes it."""
    return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf)).removesuffix("...\n").strip()
