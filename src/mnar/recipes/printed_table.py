"""Read a table of the paper, written as text in its printed form, into recipes.

A line of the text has a method and one cell per column. `94.04±0.18` is a mean and its standard deviation,
`88.97/87.37` an accuracy and a geometric mean, `/41.90±8.55` a geometric mean alone. `?` means that the paper draws the
figure but does not print it, and `-` that the paper did not run the method. Symbols at the end of a cell refer to
footnotes; symbols at the end of a method refer to footnotes of its whole line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mnar.recipes.defaults import Sections
from mnar.recipes.recipe import Recipe

QUOTED = "Quoted from CADR's paper, which may have used another training schedule."
_MARKS = "*†‡§¶#"
_FIGURE = r"(\d+\.\d+)(?:±(\d+\.\d+))?"
_CELL = re.compile(rf"(?:{_FIGURE})?(?:/{_FIGURE})?\??([{_MARKS}]*)")


class Column(NamedTuple):
    """One column of a table: a data set, and the protocol that decides which samples keep their label."""

    name: str  # the SETTING part of the names of its recipes
    dataset: str
    protocol: Sections


def cadr(dataset: str, gamma: int) -> Column:
    """A column under CADR's protocol."""
    return _column(f"cadr-g{gamma}", dataset, {"name": "cadr", "gamma": gamma})


def own(dataset: str, num_labels: int, n1: int, gamma_u: int | None = None) -> Column:
    """A column under the paper's own protocol."""
    protocol = {"name": "own", "num_labels": num_labels, "n1": n1}
    return _with_gamma_u(_column(f"own-n{num_labels}-{n1}", dataset, protocol), gamma_u)


def balanced(dataset: str, num_labels: int, gamma_u: int | None = None) -> Column:
    """A column with equally many labels per class."""
    protocol = {"name": "balanced", "num_labels": num_labels}
    return _with_gamma_u(_column(f"balanced-n{num_labels}", dataset, protocol), gamma_u)


def darp(dataset: str, gamma_l: int, gamma_u: int, *, reverse: bool = False) -> Column:
    """A column under DARP's protocol."""
    protocol = {"name": "darp", "gamma_l": gamma_l, "gamma_u": gamma_u, "reverse": reverse}
    return _column(f"darp-l{gamma_l}-u{gamma_u}{'-reversed' if reverse else ''}", dataset, protocol)


def _column(protocol_name: str, dataset: str, protocol: Sections) -> Column:
    return Column(f"{dataset.removesuffix('_tabular').replace('_', '-')}-{protocol_name}", dataset, protocol)


def _with_gamma_u(column: Column, gamma_u: int | None) -> Column:
    if gamma_u is None:
        return column
    return Column(f"{column.name}-u{gamma_u}", column.dataset, {**column.protocol, "gamma_u": gamma_u})


# The columns that Table 2 and two tables of the supplement share.
OWN_COLUMNS = (
    *(own("cifar10", num_labels, n1) for num_labels, n1 in ((40, 10), (40, 20), (250, 100), (250, 200))),
    *(own("cifar100", 2500, n1) for n1 in (100, 200)),
    *(own("mini_imagenet", 1000, n1) for n1 in (40, 80)),
)


def recipes_of(
    table: str,
    columns: Iterable[Column],
    text: str,
    footnotes: Mapping[str, str] | None = None,
    variants: Mapping[str, Sections] | None = None,
) -> dict[str, Recipe]:
    """Return the recipes of a table by name, TABLE/SETTING/METHOD.

    text         the printed table, see the docstring of this module
    footnotes    the footnote of each symbol
    variants     options of a guidance by name: "prg-steps-2" is PRG with the options of the variant "steps-2"
    """
    methods, *printed_columns = zip(*(line.split() for line in text.strip().splitlines()), strict=True)
    recipes = {}
    for column, cells in zip(columns, printed_columns, strict=True):
        for marked, cell in zip(methods, cells, strict=True):
            method = marked.rstrip(_MARKS)
            if cell != "-":
                sections = _sections(column, method, variants or {})
                cell += marked.removeprefix(method)
                recipes[f"{table}/{column.name}/{method}"] = _recipe(sections, cell, footnotes or {})
    return recipes


def _sections(column: Column, method: str, variants: Mapping[str, Sections]) -> Sections:
    """Return the configuration of a method, LEARNER or LEARNER+GUIDANCE or LEARNER+GUIDANCE-VARIANT."""
    learner, _, guided = method.partition("+")
    guidance, _, variant = guided.partition("-")
    guided_by = {"guidance": {"name": guidance, **(variants[variant] if variant else {})}} if guidance else {}
    return {
        "dataset": {"name": column.dataset},
        "protocol": column.protocol,
        "learner": {"name": learner},  # without a guidance in the name: the guidance of the learner's own paper
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
