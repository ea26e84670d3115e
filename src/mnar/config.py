"""RunConfig <-> YAML. What options a method has is read off its constructor: there is no second list of them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from mnar.augment import Augment
from mnar.datasets import DATASETS
from mnar.engine import EngineOptions
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.models import MODELS
from mnar.protocols import PROTOCOLS, split
from mnar.train_options import TrainOptions

Options = dict[str, Any]
IDLE_GUIDANCES = ("none", "tracking")  # those that change no pseudo-label


@dataclass(frozen=True)
class Choice:
    """One of a table of interchangeable parts, and its options."""

    name: str
    options: Options = field(default_factory=dict)
    after: Choice | None = None  # of a guidance: the one whose pseudo-labels it rectifies further

    @property
    def chain(self) -> list[Choice]:
        """In the order in which they act."""
        return [*(self.after.chain if self.after else []), self]

    @property
    def full_name(self) -> str:
        """As it can be given on the command line, e.g. "distribution_alignment+prg"."""
        return "+".join(part.name for part in self.chain)

    def to_dict(self) -> dict[str, Any]:
        after = {"after": self.after.to_dict()} if self.after else {}
        return {"name": self.name, **self.options, **after}


# What a user may choose from, by section. Parameters that the assembler supplies are not options.
TABLES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "dataset": DATASETS,
    "protocol": PROTOCOLS,
    "model": MODELS,
    "learner": LEARNERS,
    "guidance": GUIDANCES,
}
SUPPLIED = {
    "dataset": set[str](),
    "protocol": {"num_classes"},
    "model": {"input_shape", "num_classes"},
    "learner": {"task", "guidance"},
    "guidance": {"task"},
    "split": {"targets", "counts", "seed"},
    "augment": {"mean", "std"},
    "train": set[str](),
    "engine": set[str](),
}
SECTIONS: dict[str, Callable[..., Any]] = {
    "split": split,
    "augment": Augment,
    "train": TrainOptions,
    "engine": EngineOptions,
}


PLACES = ("dataset.root", "learner.encoder")


@dataclass(frozen=True)
class RunConfig:
    """One training run, complete: two equal ones give equal runs."""

    dataset: Choice
    protocol: Choice
    model: Choice
    learner: Choice
    guidance: Choice
    split: Options
    augment: Options
    train: TrainOptions
    engine: EngineOptions
    seed: int

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any]) -> RunConfig:
        """From sections as YAML has them; options left out take the constructor's default."""
        names = [f.name for f in dataclasses.fields(cls)]
        _refuse_unknown(sections, names, "section")
        chosen = {section: _choose(section, sections[section]) for section in TABLES if section in sections}
        missing = [name for name in TABLES if name not in chosen]
        if missing:
            raise ValueError(f"the configuration has no section {missing[0]!r}; it needs {sorted(TABLES)}")
        options = {section: complete(make, sections.get(section, {}), section) for section, make in SECTIONS.items()}
        seed = convert(sections.get("seed", 1), int, "seed")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed is {seed}; choose one from 0 to 2^63 - 1")
        return cls(
            **chosen,
            split=options["split"],
            augment=options["augment"],
            train=TrainOptions(**options["train"]),
            engine=EngineOptions(**options["engine"]),
            seed=seed,
        )

    def to_dict(self) -> dict[str, Any]:
        chosen = {section: getattr(self, section) for section in TABLES}
        return {
            **{section: part.to_dict() for section, part in chosen.items()},
            "split": self.split,
            "augment": self.augment,
            "train": dataclasses.asdict(self.train),
            "engine": dataclasses.asdict(self.engine),
            "seed": self.seed,
        }

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        sections = _read_yaml(text, "the configuration")
        if not isinstance(sections, dict):
            raise ValueError("the configuration is not a YAML mapping of sections")
        return cls.from_dict(sections)

    def to_yaml(self) -> str:
        return yaml.safe_dump(_plain(self.to_dict()), sort_keys=False)

    def differences(self, other: RunConfig) -> list[str]:
        """Where two configurations differ, e.g. ["train.lr: 0.03 and 0.01"]."""
        mine, theirs = settings_of(_plain(self.to_dict())), settings_of(_plain(other.to_dict()))
        return [f"{n}: {mine.get(n)} and {theirs.get(n)}" for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]

    def with_engine(self, settings: Iterable[str]) -> RunConfig:
        """The same run on another machine; only engine settings may change."""
        sections = self.to_dict()
        for setting in settings:
            section, option, value = parse_setting(setting)
            if section != "engine":
                raise ValueError(f"--set {setting} would make it another run; only engine options can change now")
            sections["engine"] = {**sections["engine"], option: value}
        return RunConfig.from_dict(sections)


def parse_setting(setting: str) -> tuple[str, str, Any]:
    """`SECTION.OPTION=VALUE` as --set takes it."""
    target, equals, value = setting.partition("=")
    section, dot, option = target.strip().partition(".")
    if not equals or not dot or not section or not option:
        raise ValueError(f"cannot read --set {setting!r}; write SECTION.OPTION=VALUE, e.g. guidance.alpha=3")
    sections = [*TABLES, *SECTIONS]
    if section not in sections:
        raise ValueError(f"unknown section {section!r} in --set {setting!r}; choose from {sections}")
    return section, option, _read_yaml(value, f"the value in --set {setting!r}")


def settings_of(sections: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run, flat: {"guidance.alpha": 3, ...}.

    Speed (engine) and the places of data and encoder are not part of it: a run may go on on another machine.
    """
    return {n: value for n, value in _leaves(sections) if not n.startswith("engine.") and n not in PLACES}


def own_guidance(learner: str) -> dict[str, Any]:
    """What a learner's own paper does with its pseudo-labels."""
    return dict(LEARNERS[learner].default_guidance) if learner in LEARNERS else {"name": "none"}


def options_of(section: str, make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a part, in the order of its signature."""
    parameters = _signature(make).parameters
    return {name: p for name, p in parameters.items() if name not in SUPPLIED[section]}


def complete(make: Callable[..., Any], given: Mapping[str, Any], where: str) -> Options:
    """The options given, checked against the signature of `make`, and its defaults for the rest."""
    if not isinstance(given, Mapping):
        raise ValueError(f"section {where} is {given!r}; expected options with their values")
    section = where.split()[0]
    parameters = options_of(section, make)
    _refuse_unknown(given, list(parameters), f"option of {where}")
    hints = _hints(make)
    options = {}
    for name, parameter in parameters.items():
        if name in given:
            options[name] = convert(given[name], hints.get(name, Any), f"{where}.{name}")
        elif parameter.default is not inspect.Parameter.empty:
            options[name] = parameter.default
        else:
            raise ValueError(f"{where} needs the option {name}; give it with --set {section}.{name}=VALUE")
    return options


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value`, as YAML gives it, as the type that an annotation names."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return convert(value, option, where)
            except ValueError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{where} is {value!r}; choose from {list(arguments)}")
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(v, arguments[0], where) for v in value)
    elif hint is type(None) and value is None:
        return None
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 1e-3 as text
        except ValueError:
            number = math.nan
        if not math.isnan(number):
            return number
    elif isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    elif isinstance(hint, type) and isinstance(value, str) and issubclass(hint, Path):
        return hint(value)
    raise ValueError(f"{where} is {value!r}; expected {_type_name(hint)}")


def _choose(section: str, given: Any, where: str | None = None) -> Choice:
    table = TABLES[section]
    if not isinstance(given, Mapping) or "name" not in given:
        remedy = ", e.g. --guidance distribution_alignment+prg" if where else ""
        raise ValueError(f"section {where or section} needs a name; choose from {sorted(table)}{remedy}")
    name = given["name"]
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"unknown {section} {name!r}; choose from {sorted(table)}")
    options = {option: value for option, value in given.items() if option != "name"}
    after = options.pop("after", None) if section == "guidance" else None
    return Choice(
        name,
        complete(table[name], options, f"{section} {name}"),
        after=None if after is None else _choose(section, after, "guidance.after"),
    )


@functools.cache
def _signature(make: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(make)


@functools.cache
def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(make, functools.partial):
        make = make.func
    return typing.get_type_hints(make.__init__ if inspect.isclass(make) else make)


def _refuse_unknown(given: Mapping[str, Any], known: list[str], what: str) -> None:
    for name in given:
        if name not in known:
            remedy = f"choose from {sorted(known)}" if known else "it has none"
            raise ValueError(f"unknown {what}: {name!r}; {remedy}")


def _read_yaml(text: str, what: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{what} is not YAML: {' '.join(str(error).split())}") from error


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(value: Any) -> Any:
    """Only what YAML itself knows."""
    if isinstance(value, Mapping):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _type_name(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    return names.get(hint, str(hint).replace("typing.", ""))
