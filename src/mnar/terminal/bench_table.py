"""The results of a bench as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from mnar.bench.cell import Cell
from mnar.bench.difference_table import ABOUT_DIFFERENCES, REFERENCE, difference_headings, difference_table
from mnar.bench.rows import (
    METHOD,
    SETTING,
    by_table,
    circumstances,
    filled_columns,
    headings,
    how_to_read,
    row,
    what_is_missing,
)

INDENT = "  "  # of a method below its setting
BETWEEN = 2  # characters between two columns
LONGEST_NAME = 40  # of a setting or method; a longer name, e.g. with many changed settings, takes several lines


def shown(cells: Sequence[Cell], width: int) -> Iterator[str | Table]:
    """The tables, then remarks on missing runs, circumstances, and how to read the tables."""
    for title, group in by_table(cells).items():
        yield from terminal_tables(title, group, width)
        yield from difference_tables(group, width)
    yield from map(escape, what_is_missing(cells))
    if known := circumstances(cells):
        yield escape(known)
    about = [how_to_read(cells), *([ABOUT_DIFFERENCES] if difference_table(cells) else [])]
    yield f"[dim]{' '.join(about)}[/dim]"


def terminal_tables(title: str, cells: Sequence[Cell], width: int) -> list[Table]:
    """One table, or several if the terminal is too narrow for all columns."""
    rows = [row(cell) for cell in cells]
    return _terminal_tables(title, headings(), rows, filled_columns(rows), width)


def difference_tables(cells: Sequence[Cell], width: int) -> list[Table]:
    """The paired differences of the methods; no table if there is nothing to compare."""
    differences = difference_table(cells)
    if differences is None:
        return []
    rows = [{**line, SETTING: f"{line[SETTING]}, reference: {line[REFERENCE]}"} for line in differences.rows]
    columns = [column for column in difference_headings() if column not in (SETTING, METHOD, REFERENCE)]
    return _terminal_tables(differences.title, difference_headings(), rows, columns, width)


def _terminal_tables(
    title: str, headings: Mapping[str, str], rows: Sequence[dict[str, str]], columns: Sequence[str], width: int
) -> list[Table]:
    width_of = {column: max(cell_len(line[column]) for line in [headings, *rows]) for column in headings}
    first = min(max(width_of[SETTING], width_of[METHOD] + len(INDENT)), LONGEST_NAME)
    groups: list[list[str]] = [[]]
    for column in columns:
        widths = [first, *(width_of[name] for name in [*groups[-1], column])]
        if groups[-1] and sum(widths) + BETWEEN * len(widths) > width:
            groups.append([])
        groups[-1].append(column)
    return [_terminal_table("" if i else title, headings, rows, group, first) for i, group in enumerate(groups)]


def _terminal_table(
    title: str, headings: Mapping[str, str], rows: Sequence[dict[str, str]], columns: Sequence[str], first: int
) -> Table:
    """A table in which each setting is a heading above its methods. The first column is at most `first` wide."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(headings[METHOD], max_width=first, overflow="fold")
    for column in columns:
        table.add_column(headings[column], justify="right", no_wrap=True)
    for setting, group in groupby(rows, key=lambda line: line[SETTING]):
        table.add_row(f"[bold]{escape(setting)}[/bold]")
        for line in group:
            method = Padding(escape(line[METHOD]), (0, 0, 0, len(INDENT)))
            table.add_row(method, *(escape(line[column]) for column in columns))
    return table
