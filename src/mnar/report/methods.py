"""Group runs into settings (data set and protocol) and methods (learner, guidance and options), and name the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mnar.report.style import colours, line_styles
from mnar.run.reader import Run

PRG = ("prg", "prg_last", "prg_smooth", "prg_balanced")
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
# The options in the name of a protocol. Its other options appear only if they distinguish two settings.
PROTOCOL_OPTIONS = {
    "cadr": ("gamma",),
    "own": ("num_labels", "n1", "gamma_u"),
    "darp": ("gamma_l", "gamma_u"),
    "balanced": ("num_labels", "gamma_u"),
    "pool_shape": ("gamma_l", "gamma_u"),
    "as_labeled": ("num_labels",),
}


class Method(NamedTuple):
    """Runs that differ in their seed only. Name, colour and line style are the same in all settings."""

    name: str
    runs: list[Run]
    colour: str
    line_style: str

    @property
    def run(self) -> Run:
        """Any run of the method; all have the same options."""
        return self.runs[0]

    @property
    def counted(self) -> list[Run]:
        """The runs whose scores count: the finished runs, or all runs if none is finished."""
        return [run for run in self.runs if run.is_finished] or self.runs

    @property
    def progress(self) -> str:
        """How far an unfinished method has got, e.g. "at step 3,584 of 16,384"; empty once a run is finished."""
        if any(run.is_finished for run in self.runs):
            return ""
        steps = named_steps(run.step for run in self.runs)
        return f"at {steps} of {self.run.config['train']['iterations']:,}"


class Setting(NamedTuple):
    """One task, i.e. a data set and a protocol, and the methods that were trained on it."""

    name: str
    methods: list[Method]

    @property
    def run(self) -> Run:
        """Any run of the setting; all have the same data and labels."""
        return self.methods[0].run


def named_steps(steps: Iterable[int]) -> str:
    """E.g. "step 3,584", or "steps 60 to 80"."""
    first, *others = sorted(set(steps))
    return f"steps {first:,} to {others[-1]:,}" if others else f"step {first:,}"


def by_setting(runs: Sequence[Run]) -> list[Setting]:
    """Group runs by setting and method. Learners without guidance come first, as baselines."""
    settings = [
        _grouped(sorted(group, key=lambda run: not run.is_plain), lambda run: run.method)
        for group in _grouped(runs, lambda run: run.setting)
    ]
    setting_names = _setting_names([groups[0][0] for groups in settings])
    method_names = _method_names([[group[0] for group in groups] for groups in settings])
    labels = {run.label for run in runs}
    # Variants come last: the palette has seven colours, and later methods get dashes and hatches.
    everywhere = sorted(dict.fromkeys(name for names in method_names for name in names), key=lambda n: n not in labels)
    colour, line_style = colours(everywhere), line_styles(everywhere)
    methods = [
        [Method(name, group, colour[name], line_style[name]) for name, group in zip(names, groups, strict=True)]
        for names, groups in zip(method_names, settings, strict=True)
    ]
    return [Setting(*each) for each in zip(setting_names, methods, strict=True)]


def most_telling(methods: Sequence[Method], most: int) -> list[Method]:
    """At most `most` methods, in their order; methods with PRG and their baselines are kept first."""
    learners = {method.run.learner for method in methods if _is_prg(method)}

    def is_other(method: Method) -> bool:
        return not _is_prg(method) and not (method.run.is_plain and method.run.learner in learners)

    kept = {method.name for method in sorted(methods, key=is_other)[:most]}
    return [method for method in methods if method.name in kept]


def _is_prg(method: Method) -> bool:
    return any(name in PRG for name in method.run.added)


def protocol_name(run: Run) -> str:
    """E.g. "darp γ_l=100, γ_u=100 reversed"; empty for labels that are used as they are."""
    protocol = run.config["protocol"]
    options = [name for name in PROTOCOL_OPTIONS.get(protocol["name"], ()) if protocol.get(name) is not None]
    named = [] if protocol["name"] == "as_labeled" else [protocol["name"]]
    named += [protocol["shape"]] if "shape" in protocol else []
    named += [", ".join(f"{SYMBOLS[name]}={_written(protocol[name])}" for name in options)] if options else []
    return " ".join([*named, "reversed"] if protocol.get("reverse") else named)


def task_name(run: Run) -> str:
    """The data set and the protocol, e.g. "cifar10, cadr γ=20"."""
    return ", ".join(filter(None, [str(run.split["dataset"]), protocol_name(run)]))


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """The options, except the seed, that differ between these runs."""
    return differing([run.method for run in runs])


def differing(traits: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in traits for name in each)
    return [name for name in names if any(each.get(name) != traits[0].get(name) for each in traits)]


def distinguished(name: str, values: Mapping[str, Any], usual: Mapping[str, str] | None = None) -> str:
    """A name followed by the options that distinguish it from others with the same name, e.g. "prg (alpha=3)".

    The usual value of an option is left out; without a usual value, a missing option is left out. The caller passes
    the same options for every method with this name, so that the resulting names differ.
    """
    left_out, options = usual or {}, [setting.rpartition(".")[2] for setting in values]
    shown = [
        f"{setting if options.count(option) > 1 else option}={_written(value)}"
        for option, (setting, value) in zip(options, values.items(), strict=True)
        if _written(value) != left_out.get(setting, ABSENT)
    ]
    return f"{name} ({', '.join(shown)})" if shown else name


def _grouped(runs: Iterable[Run], traits_of: Callable[[Run], dict[str, Any]]) -> list[list[Run]]:
    """Group runs with equal traits, in the order of the first run of each group."""
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
    """Label each method; methods with the same label in one setting are named with the options that differ."""
    same_label: dict[str, list[Run]] = {}
    differing_options: dict[str, dict[str, None]] = {}
    for of_setting in settings:
        for label, runs in _by_label(of_setting).items():
            same_label.setdefault(label, []).extend(runs)
            differing_options.setdefault(label, {}).update(dict.fromkeys(differing_settings(runs)))
    usual = {
        label: {name: _usual(run.method.get(name) for run in same_label[label]) for name in names}
        for label, names in differing_options.items()
    }

    def name_of(run: Run) -> str:
        values = {name: run.method.get(name) for name in differing_options[run.label]}
        return distinguished(run.label, values, usual[run.label])

    return [[name_of(run) for run in of_setting] for of_setting in settings]


def _by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    labelled: dict[str, list[Run]] = {}
    for run in runs:
        labelled.setdefault(run.label, []).append(run)
    return labelled


def _usual(values: Iterable[Any]) -> str:
    """The most frequent value; `ABSENT` if two values are equally frequent."""
    (usual, most), *others = Counter(map(_written, values)).most_common(2)
    return ABSENT if others and others[0][1] == most else usual


def _setting_names(settings: Sequence[Run]) -> list[str]:
    """Name each setting by its protocol, and by its data set if there are several."""
    is_one_data_set = len({run.split["dataset"] for run in settings}) == 1
    names = [protocol_name(run) if is_one_data_set and protocol_name(run) else task_name(run) for run in settings]
    same_name = {name: [run for run, other in zip(settings, names, strict=True) if other == name] for name in names}
    differing_options = {name: differing([run.setting for run in runs]) for name, runs in same_name.items()}
    return [
        distinguished(name, {each: run.setting.get(each) for each in differing_options[name]})
        for name, run in zip(names, settings, strict=True)
    ]


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    return ABSENT if value is None else str(value)
