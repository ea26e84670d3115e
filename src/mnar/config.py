"""`RunConfig`: one complete training run, read from and written to YAML.

The options of a part are the parameters of its constructor. There is no second list of options.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import yaml

from mnar.augment import Augment
from mnar.datasets import DATASETS
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.models import MODELS
from mnar.option_values import Range, annotations_of, convert, shown
from mnar.protocols import PROTOCOLS, split
from mnar.training.options import EngineOptions, TrainOptions

Options = dict[str, Any]
IDLE_GUIDANCES = ("none", "tracking")  # these change no pseudo-label
OWN_DATA = "own_data"  # the data set that reads the user's own files
SEED = Annotated[int, Range(0, 2**63 - 1)]
PUBLISHED = "published"  # the schedule of a recipe's paper, see recipes/schedules.py


@dataclass(frozen=True)
class Choice:
    """The name of one part (a learner, a guidance, ...) and its options."""

    name: str
    options: Options = field(default_factory=dict)
    preceded_by: Choice | None = None  # guidances only: the guidance that acts before this one

    @property
    def chain(self) -> list[Choice]:
        """This guidance and those that precede it, in the order in which they act."""
        return [*(self.preceded_by.chain if self.preceded_by else []), self]

    @property
    def full_name(self) -> str:
        """The name as the command line takes it, e.g. "distribution_alignment+prg"."""
        return "+".join(part.name for part in self.chain)

    def to_dict(self) -> dict[str, Any]:
        before = {"preceded_by": self.preceded_by.to_dict()} if self.preceded_by else {}
        return {"name": self.name, **self.options, **before}


# The parts that a user can choose from, by section of the configuration.
TABLES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "dataset": DATASETS,
    "protocol": PROTOCOLS,
    "model": MODELS,
    "learner": LEARNERS,
    "guidance": GUIDANCES,
}
# Constructor parameters that run/assemble.py passes itself, so users cannot set them.
SUPPLIED = {
    "dataset": {"seed"},
    "protocol": {"num_classes"},
    "model": {"input_shape", "num_classes"},
    "learner": {"task", "guidance"},
    "guidance": {"task"},
    "split": {"targets", "counts", "seed"},
    "augment": {"mean", "std"},
    "train": set[str](),
    "engine": set[str](),
}
# The sections without a choice of parts, and the function or class that takes their options.
SECTIONS: dict[str, Callable[..., Any]] = {
    "split": split,
    "augment": Augment,
    "train": TrainOptions,
    "engine": EngineOptions,
}


# Paths may differ between machines, so two runs that differ only in these options count as the same run.
PATH_OPTIONS = ("dataset.root", "dataset.features", "learner.encoder")
# All options that name a file or folder of the user. `train.start` is part of a run, because it changes the result.
FILE_OPTIONS = (*PATH_OPTIONS, "train.start")
# Names that run folders of version 0.1.0 use, and their present names.
RENAMED = {("dataset", "own"): OWN_DATA, ("protocol", "found"): "as_labeled"}


@dataclass(frozen=True)
class RunConfig:
    """One complete training run. Equal configurations give equal runs on the same data, machine and versions."""

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
    schedule: str = PUBLISHED  # the name of the schedule whose options `train` contains

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any]) -> RunConfig:
        """Build a configuration from YAML sections. Options that are left out take the constructor's defaults."""
        names = [f.name for f in dataclasses.fields(cls)]
        _refuse_unknown(sections, names, "section")
        chosen = {section: _choose(section, sections[section]) for section in TABLES if section in sections}
        missing = [name for name in TABLES if name not in chosen]
        if missing:
            raise ValueError(f"the configuration has no section {missing[0]!r}; it needs {sorted(TABLES)}")
        options = {section: complete(make, sections.get(section, {}), section) for section, make in SECTIONS.items()}
        seed = convert(sections.get("seed", 1), SEED, "seed", 1)
        schedule = convert(sections.get("schedule", PUBLISHED), str, "schedule")
        return cls(
            **chosen,
            split=options["split"],
            augment=options["augment"],
            train=TrainOptions(**options["train"]),
            engine=EngineOptions(**options["engine"]),
            seed=seed,
            schedule=schedule,
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
            **({} if self.schedule == PUBLISHED else {"schedule": self.schedule}),  # as in files of earlier versions
        }

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        sections = _read_option(text, "the configuration")
        if not isinstance(sections, dict):
            raise ValueError("the configuration is not a YAML mapping of sections")
        try:
            return cls.from_dict(_with_former_network(with_current_names(sections)))
        except RecursionError as error:  # a part of the text refers to itself
            raise ValueError("the configuration is nested too deeply; write at most a few guidances") from error

    def to_yaml(self) -> str:
        return yaml.safe_dump(_plain(self.to_dict()), sort_keys=False)

    def differences(self, other: RunConfig) -> list[str]:
        """The options in which two configurations differ, e.g. ["train.lr: 0.03 and 0.01"]."""
        mine, theirs = (
            settings_of(_plain({**config.to_dict(), "schedule": config.schedule})) for config in (self, other)
        )
        return [f"{n}: {mine.get(n)} and {theirs.get(n)}" for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]

    def with_engine(self, settings: Iterable[str]) -> RunConfig:
        """The same run with other engine options, e.g. on another machine."""
        sections = self.to_dict()
        for setting in settings:
            section, option, value = parse_setting(setting)
            if section != "engine":
                raise ValueError(
                    f"--set {setting} would change the run; start a new run, or change only engine options, e.g. --set "
                    "engine.device=cpu"
                )
            sections["engine"] = {**sections["engine"], option: value}
        return RunConfig.from_dict(sections)


def parse_setting(setting: str) -> tuple[str, str, Any]:
    """Split a --set argument, `SECTION.OPTION=VALUE`, into section, option and value."""
    target, equals, value = setting.partition("=")
    section, dot, option = target.strip().partition(".")
    if not equals or not dot or not section or not option:
        raise ValueError(f"cannot read --set {shown(setting)}; write SECTION.OPTION=VALUE, e.g. guidance.alpha=3")
    sections = [*TABLES, *SECTIONS]
    if section not in sections:
        raise ValueError(f"unknown section {shown(section)} in --set {shown(setting)}; choose from {sections}")
    return section, option, _read_option(value, f"the value in --set {shown(setting)}")


def settings_of(sections: Mapping[str, Any]) -> dict[str, Any]:
    """All options that define a run, flat: {"guidance.alpha": 3, ...}.

    Engine options and the paths of the user's files are left out, so that a run can continue on another machine.
    """
    return {n: value for n, value in _flatten(sections) if not n.startswith("engine.") and n not in PATH_OPTIONS}


def with_current_names(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of an older configuration file with the names that this version uses."""
    renamed = dict(sections)
    for (section, old), new in RENAMED.items():
        part = renamed.get(section)
        if isinstance(part, Mapping) and part.get("name") == old:
            renamed[section] = {**part, "name": new}
    if isinstance(renamed.get("guidance"), Mapping):
        renamed["guidance"] = _with_preceded_by(renamed["guidance"])
    return renamed


def _with_former_network(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep the network of version 0.1.0, whose small_cnn did not pool the feature maps of large images."""
    model = sections.get("model")
    if not isinstance(model, Mapping) or model.get("name") != "small_cnn" or "stages" in model:
        return sections
    return {**sections, "model": {**model, "stages": 2, "positions": 0}}


def _with_preceded_by(guidance: Mapping[str, Any]) -> dict[str, Any]:
    """A guidance section in which the former key `after` is called `preceded_by`."""
    renamed = {"preceded_by" if key == "after" else key: value for key, value in guidance.items()}
    before = renamed.get("preceded_by")
    return {**renamed, "preceded_by": _with_preceded_by(before)} if isinstance(before, Mapping) else renamed


def guidance_chain(guidance: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The guidances of a chain as separate sections, in the order in which they act."""
    own_options = {name: value for name, value in guidance.items() if name != "preceded_by"}
    before = guidance.get("preceded_by")
    return [*(guidance_chain(before) if before else []), own_options]


def default_guidance_of(learner: str) -> dict[str, Any]:
    """The guidance that the learner's own paper uses, as a section; "none" for most learners."""
    return dict(LEARNERS[learner].default_guidance) if learner in LEARNERS else {"name": "none"}


def options_of(section: str, make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a part: the parameters of its constructor that the assembler does not supply, in order."""
    parameters = _signature(make).parameters
    return {name: p for name, p in parameters.items() if name not in SUPPLIED[section]}


def has_option(sections: Mapping[str, Any], name: str) -> bool:
    """Whether the parts that `sections` name have an option, e.g. "guidance.smoothing", in this version."""
    section, option = name.split(".")
    make = TABLES[section].get(sections[section]["name"]) if section in TABLES else SECTIONS[section]
    return make is not None and option in options_of(section, make)


def complete(make: Callable[..., Any], given: Mapping[str, Any], section: str, part: str = "") -> Options:
    """Check the given options against the signature of `make`, and add the defaults of the other options.

    `part` is the name of the chosen part in a section that has several, e.g. "fixmatch" in the section "learner".
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"section {section} is {shown(given)}; it must be a mapping from options to values")
    parameters = options_of(section, make)
    _refuse_unknown(given, list(parameters), f"option of {section} {part}".rstrip())
    hints = annotations_of(make)
    options = {}
    for name, parameter in parameters.items():
        if name in given:
            where = f"{section}.{name} ({part})" if part else f"{section}.{name}"
            options[name] = convert(given[name], hints[name], where, parameter.default)
        elif parameter.default is not inspect.Parameter.empty:
            options[name] = parameter.default
        else:
            raise ValueError(f"{section} {part} needs the option {name}; give it with --set {section}.{name}=VALUE")
    return options


def _choose(section: str, given: Any, where: str | None = None) -> Choice:
    table = TABLES[section]
    if not isinstance(given, Mapping) or "name" not in given:
        remedy = ", e.g. --guidance distribution_alignment+prg" if where else ""
        raise ValueError(f"section {where or section} needs a name; choose from {sorted(table)}{remedy}")
    name = given["name"]
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"unknown {section} {shown(name)}; choose from {sorted(table)}")
    options = {option: value for option, value in given.items() if option != "name"}
    before = options.pop("preceded_by", None) if section == "guidance" else None
    return Choice(
        name,
        complete(table[name], options, section, name),
        preceded_by=None if before is None else _choose(section, before, "guidance.preceded_by"),
    )


def names_of(section: str) -> list[str]:
    """The names of the parts that a section can have."""
    return sorted(TABLES[section])


@functools.cache
def _signature(make: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(make)


def _refuse_unknown(given: Mapping[str, Any], known: list[str], what: str) -> None:
    for name in given:
        if name not in known:
            remedy = f"choose from {sorted(known)}" if known else "this part has no options; leave the option out"
            raise ValueError(f"unknown {what}: {shown(name)}; {remedy}")


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split())[:300]})") from error
    except Exception as error:  # PyYAML raises many types of exception for a text such as "!!bool x" or "[[[[..."
        raise ValueError("not YAML (a value does not fit its tag, or brackets are nested too deeply)") from error


def _read_option(text: str, what: str) -> Any:
    try:
        return read_yaml(text)
    except ValueError as error:
        raise ValueError(f"{what} is {error}; correct the text") from error


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(value: Any) -> Any:
    """Convert tuples to lists and paths to text, so that only plain YAML types remain."""
    if isinstance(value, Mapping):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
