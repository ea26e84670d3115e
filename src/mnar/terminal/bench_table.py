"""The results of a bench as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from mnar.bench.cell import Cell
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


def shown(cells: Sequence[Cell], width: int) -> Iterator[str | Table]:
    """The tables, then remarks on missing runs, circumstances, and how to read the tables."""
    for title, group in by_table(cells).items():
        yield from terminal_tables(title, group, width)
    yield from map(escape, what_is_missing(cells))
    if known := circumstances(cells):
        yield escape(known)
    yield f"[dim]{how_to_read(cells)}[/dim]"


def terminal_tables(title: str, cells: Sequence[Cell], width: int) -> list[Table]:
    """One table, or several if the terminal is too narrow for all columns."""
    rows = [row(cell) for cell in cells]
    columns = filled_columns(rows)
    width_of = {column: max(cell_len(line[column]) for line in [headings(), *rows]) for column in headings()}
    first = max(width_of[SETTING], width_of[METHOD] + len(INDENT))
    groups: list[list[str]] = [[]]
    for column in columns:
        widths = [first, *(width_of[name] for name in [*groups[-1], column])]
        if groups[-1] and sum(widths) + BETWEEN * len(widths) > width:
            groups.append([])
        groups[-1].append(column)
    return [_terminal_table("" if i else title, rows, group) for i, group in enumerate(groups)]


def _terminal_table(title: str, rows: Sequence[dict[str, str]], columns: Sequence[str]) -> Table:
    """A table in which each setting is a heading above its methods."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(headings()[METHOD], no_wrap=True)
    for column in columns:
        table.add_column(headings()[column], justify="right", no_wrap=True)
    for setting, group in groupby(rows, key=lambda line: line[SETTING]):
        table.add_row(f"[bold]{escape(setting)}[/bold]")
        for line in group:
            table.add_row(f"{INDENT}{escape(line[METHOD])}", *(line[column] for column in columns))
    return table
