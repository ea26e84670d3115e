"""Which runs belong together, and what to call them: settings, and the methods that were tried in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mnar.report.style import colours, line_styles
from mnar.run.reader import Run

PRG = ("prg", "prg_last")
ABSENT = "–"  # in place of a value
SYMBOLS = {
    "gamma": "γ",
    "gamma_l": "γ_l",
    "gamma_u": "γ_u",
    "num_labels": "n",
    "n1": "N1",
    "alpha": "α",
    "window": "N_B",
}
# What a protocol is told by; its other options stand there only where they tell two settings apart.
PROTOCOL_OPTIONS = {
    "cadr": ("gamma",),
    "own": ("num_labels", "n1", "gamma_u"),
    "darp": ("gamma_l", "gamma_u"),
    "balanced": ("num_labels", "gamma_u"),
    "as_labeled": ("num_labels",),
}


class Method(NamedTuple):
    """Runs that differ in their seed alone. Name and look are the same in all settings."""

    name: str
    runs: list[Run]
    colour: str
    line_style: str

    @property
    def run(self) -> Run:
        """One that stands for all."""
        return self.runs[0]

    @property
    def counted(self) -> list[Run]:
        """Those whose scores are the method's: the finished ones, and as long as there is none, all."""
        return [run for run in self.runs if run.is_finished] or self.runs

    @property
    def progress(self) -> str:
        """How far it has got, e.g. "at step 3,584 of 16,384"; empty once a run is finished."""
        if any(run.is_finished for run in self.runs):
            return ""
        steps = named_steps(run.step for run in self.runs)
        return f"at {steps} of {self.run.config['train']['iterations']:,}"


class Setting(NamedTuple):
    """What was to be learnt, and by which methods."""

    name: str
    methods: list[Method]

    @property
    def run(self) -> Run:
        """One whose data and labels stand for all."""
        return self.methods[0].run


def named_steps(steps: Iterable[int]) -> str:
    """E.g. "step 3,584", or "steps 60 to 80"."""
    first, *others = sorted(set(steps))
    return f"steps {first:,} to {others[-1]:,}" if others else f"step {first:,}"


def by_setting(runs: Sequence[Run]) -> list[Setting]:
    """In the order of the first run of each, but plain learners first: they are what others are compared with."""
    settings = [
        _grouped(sorted(group, key=lambda run: not run.is_plain), lambda run: run.method)
        for group in _grouped(runs, lambda run: run.setting)
    ]
    setting_names = _setting_names([groups[0][0] for groups in settings])
    method_names = _method_names([[group[0] for group in groups] for groups in settings])
    labels = {run.label for run in runs}
    # Variants come last: the palette has seven colours, and hatches and dashes are for those past its end.
    everywhere = sorted(dict.fromkeys(name for names in method_names for name in names), key=lambda n: n not in labels)
    colour, line_style = colours(everywhere), line_styles(everywhere)
    methods = [
        [Method(name, group, colour[name], line_style[name]) for name, group in zip(names, groups, strict=True)]
        for names, groups in zip(method_names, settings, strict=True)
    ]
    return [Setting(*each) for each in zip(setting_names, methods, strict=True)]


def most_telling(methods: Sequence[Method], most: int) -> list[Method]:
    """At most so many, in their order: PRG's and the plain learners that they guide are kept before others."""
    learners = {method.run.learner for method in methods if _is_prg(method)}

    def is_other(method: Method) -> bool:
        return not _is_prg(method) and not (method.run.is_plain and method.run.learner in learners)

    kept = {method.name for method in sorted(methods, key=is_other)[:most]}
    return [method for method in methods if method.name in kept]


def _is_prg(method: Method) -> bool:
    return any(name in PRG for name in method.run.added)


def protocol_name(run: Run) -> str:
    """E.g. "darp γ_l=100, γ_u=100 reversed"; empty for labels as they were found."""
    protocol = run.config["protocol"]
    options = [name for name in PROTOCOL_OPTIONS.get(protocol["name"], ()) if protocol.get(name) is not None]
    named = [] if protocol["name"] == "as_labeled" else [protocol["name"]]
    named += [", ".join(f"{SYMBOLS[name]}={_written(protocol[name])}" for name in options)] if options else []
    return " ".join([*named, "reversed"] if protocol.get("reverse") else named)


def task_name(run: Run) -> str:
    """Data set and protocol."""
    return ", ".join(filter(None, [str(run.split["dataset"]), protocol_name(run)]))


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """The settings, seed aside, that are not the same in all these runs."""
    return differing([run.method for run in runs])


def differing(traits: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in traits for name in each)
    return [name for name in names if any(each.get(name) != traits[0].get(name) for each in traits)]


def told_apart(name: str, values: Mapping[str, Any], usual: Mapping[str, str] | None = None) -> str:
    """A name, and the values of the settings that tell it from its namesakes.

    One value of each setting goes without saying, the usual one or else that there is none. All of them must be given
    for every namesake: names differ then, for no two values are written alike, and no two settings.
    """
    unsaid, options = usual or {}, [setting.rpartition(".")[2] for setting in values]
    said = [
        f"{setting if options.count(option) > 1 else option}={_written(value)}"
        for option, (setting, value) in zip(options, values.items(), strict=True)
        if _written(value) != unsaid.get(setting, ABSENT)
    ]
    return f"{name} ({', '.join(said)})" if said else name


def _grouped(runs: Iterable[Run], traits_of: Callable[[Run], dict[str, Any]]) -> list[list[Run]]:
    """Runs whose traits are equal, in the order of the first of each."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    for run in runs:
        traits = traits_of(run)
        group = next((group for of_group, group in groups if of_group == traits), None)
        if group is None:
            groups.append((traits, [run]))
        else:
            group.append(run)
    return [group for _, group in groups]


def _method_names(settings: Sequence[Sequence[Run]]) -> list[list[str]]:
    """The label, and what tells namesakes apart within a setting: what only differs between settings is theirs."""
    namesakes: dict[str, list[Run]] = {}
    told_by: dict[str, dict[str, None]] = {}
    for of_setting in settings:
        for label, runs in _by_label(of_setting).items():
            namesakes.setdefault(label, []).extend(runs)
            told_by.setdefault(label, {}).update(dict.fromkeys(differing_settings(runs)))
    usual = {
        label: {name: _usual(run.method.get(name) for run in namesakes[label]) for name in names}
        for label, names in told_by.items()
    }

    def name_of(run: Run) -> str:
        values = {name: run.method.get(name) for name in told_by[run.label]}
        return told_apart(run.label, values, usual[run.label])

    return [[name_of(run) for run in of_setting] for of_setting in settings]


def _by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    labelled: dict[str, list[Run]] = {}
    for run in runs:
        labelled.setdefault(run.label, []).append(run)
    return labelled


def _usual(values: Iterable[Any]) -> str:
    """What more of them have than anything else; where nothing is, that there is none."""
    (usual, most), *others = Counter(map(_written, values)).most_common(2)
    return ABSENT if others and others[0][1] == most else usual


def _setting_names(settings: Sequence[Run]) -> list[str]:
    """The protocol, and the data set where there are several."""
    is_one_data_set = len({run.split["dataset"] for run in settings}) == 1
    names = [protocol_name(run) if is_one_data_set and protocol_name(run) else task_name(run) for run in settings]
    namesakes = {name: [run for run, other in zip(settings, names, strict=True) if other == name] for name in names}
    told_by = {name: differing([run.setting for run in runs]) for name, runs in namesakes.items()}
    return [
        told_apart(name, {each: run.setting.get(each) for each in told_by[name]})
        for name, run in zip(names, settings, strict=True)
    ]


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    return ABSENT if value is None else str(value)
