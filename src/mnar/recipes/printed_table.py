"""A table of a paper, written down as it is printed, as recipes.

A line of the text is a method and a cell for each setting: `94.04±0.18` is mean and deviation, `88.97/87.37` accuracy
and geometric mean, `/41.90±8.55` a geometric mean alone; `?` is drawn but not printed, `-` was not run. Symbols at the
end of a cell, or of the method for its whole line, point to footnotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mnar.recipes.defaults import Sections
from mnar.recipes.recipe import Recipe

QUOTED = "Quoted from CADR's paper: its schedule may be another."
_MARKS = "*†‡§¶#"
_FIGURE = r"(\d+\.\d+)(?:±(\d+\.\d+))?"
_CELL = re.compile(rf"(?:{_FIGURE})?(?:/{_FIGURE})?\??([{_MARKS}]*)")


class Setting(NamedTuple):
    """A column: the data, and who keeps a label."""

    name: str
    dataset: str
    protocol: Sections


def cadr(dataset: str, gamma: int) -> Setting:
    return _setting(f"cadr-g{gamma}", dataset, {"name": "cadr", "gamma": gamma})


def own(dataset: str, num_labels: int, n1: int, gamma_u: int | None = None) -> Setting:
    protocol = {"name": "own", "num_labels": num_labels, "n1": n1}
    return _with_gamma_u(_setting(f"own-n{num_labels}-{n1}", dataset, protocol), gamma_u)


def balanced(dataset: str, num_labels: int, gamma_u: int | None = None) -> Setting:
    protocol = {"name": "balanced", "num_labels": num_labels}
    return _with_gamma_u(_setting(f"balanced-n{num_labels}", dataset, protocol), gamma_u)


def darp(dataset: str, gamma_l: int, gamma_u: int, *, reverse: bool = False) -> Setting:
    protocol = {"name": "darp", "gamma_l": gamma_l, "gamma_u": gamma_u, "reverse": reverse}
    return _setting(f"darp-l{gamma_l}-u{gamma_u}{'-reversed' if reverse else ''}", dataset, protocol)


def _setting(protocol_name: str, dataset: str, protocol: Sections) -> Setting:
    return Setting(f"{dataset.removesuffix('_tabular').replace('_', '-')}-{protocol_name}", dataset, protocol)


def _with_gamma_u(setting: Setting, gamma_u: int | None) -> Setting:
    if gamma_u is None:
        return setting
    return Setting(f"{setting.name}-u{gamma_u}", setting.dataset, {**setting.protocol, "gamma_u": gamma_u})


# Of Table 2 and of the supplement.
OWN_SETTINGS = (
    *(own("cifar10", num_labels, n1) for num_labels, n1 in ((40, 10), (40, 20), (250, 100), (250, 200))),
    *(own("cifar100", 2500, n1) for n1 in (100, 200)),
    *(own("mini_imagenet", 1000, n1) for n1 in (40, 80)),
)


def recipes_of(
    table: str,
    settings: Iterable[Setting],
    text: str,
    footnotes: Mapping[str, str] | None = None,
    variants: Mapping[str, Sections] | None = None,
) -> dict[str, Recipe]:
    """Recipes TABLE/SETTING/METHOD. `variants` are options of a guidance: prg-steps-2 is PRG with those of steps-2."""
    methods, *columns = zip(*(line.split() for line in text.strip().splitlines()), strict=True)
    recipes = {}
    for setting, column in zip(settings, columns, strict=True):
        for marked, cell in zip(methods, column, strict=True):
            method = marked.rstrip(_MARKS)
            if cell != "-":
                sections = _sections(setting, method, variants or {})
                cell += marked.removeprefix(method)
                recipes[f"{table}/{setting.name}/{method}"] = _recipe(sections, cell, footnotes or {})
    return recipes


def _sections(setting: Setting, method: str, variants: Mapping[str, Sections]) -> Sections:
    learner, _, guided = method.partition("+")
    guidance, _, variant = guided.partition("-")
    guided_by = {"guidance": {"name": guidance, **(variants[variant] if variant else {})}} if guidance else {}
    return {
        "dataset": {"name": setting.dataset},
        "protocol": setting.protocol,
        "learner": {"name": learner},  # alone: as its own paper has it
        **guided_by,
    }


def _recipe(sections: Sections, cell: str, footnotes: Mapping[str, str]) -> Recipe:
    printed = _CELL.fullmatch(cell)
    if not printed:
        raise ValueError(f"cannot read the cell {cell!r}; write it as 94.04±0.18, 88.97/87.37, ? or -")
    *figures, marks = printed.groups()
    accuracy, deviation, mean, mean_deviation = (None if figure is None else float(figure) for figure in figures)
    note = " ".join(footnotes[mark] for mark in sorted(marks, key=_MARKS.index))
    return Recipe(sections, accuracy, deviation, mean, mean_deviation, note=note)
