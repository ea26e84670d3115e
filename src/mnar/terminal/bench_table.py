"""A bench's cells for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from mnar.bench.cell import Cell
from mnar.bench.rows import (
    HEADINGS,
    CellRow,
    by_table,
    circumstances,
    filled_columns,
    how_to_read,
    row,
    what_is_missing,
)

INDENT, BETWEEN = "  ", 2  # of methods below their setting; cells between two columns, and at the edges together


def shown(cells: Sequence[Cell], width: int) -> Iterator[str | Table]:
    """All of it for a terminal."""
    for title, group in by_table(cells).items():
        yield from terminal_tables(title, group, width)
    yield from map(escape, what_is_missing(cells))
    if known := circumstances(cells):
        yield escape(known)
    yield f"[dim]{how_to_read(cells)}[/dim]"


def terminal_tables(title: str, cells: Sequence[Cell], width: int) -> list[Table]:
    """One table, or several where the terminal is too narrow for all the columns."""
    rows = [row(cell) for cell in cells]
    columns = filled_columns(rows)
    width_of = {
        column: max(cell_len(getattr(line, column)) for line in [HEADINGS, *rows]) for column in CellRow._fields
    }
    first = max(width_of["setting"], width_of["method"] + len(INDENT))
    groups: list[list[str]] = [[]]
    for column in columns:
        widths = [first, *(width_of[name] for name in [*groups[-1], column])]
        if groups[-1] and sum(widths) + BETWEEN * len(widths) > width:
            groups.append([])
        groups[-1].append(column)
    return [_terminal_table("" if i else title, rows, group) for i, group in enumerate(groups)]


def _terminal_table(title: str, rows: Sequence[CellRow], columns: Sequence[str]) -> Table:
    """Settings stand above their methods."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(HEADINGS.method, no_wrap=True)
    for column in columns:
        table.add_column(getattr(HEADINGS, column), justify="right", no_wrap=True)
    for setting, group in groupby(rows, key=lambda line: line.setting):
        table.add_row(f"[bold]{escape(setting)}[/bold]")
        for line in group:
            table.add_row(f"{INDENT}{escape(line.method)}", *(getattr(line, column) for column in columns))
    return table
