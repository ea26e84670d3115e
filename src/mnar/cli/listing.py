"""`mnar list`: the parts that a user can choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from mnar.terminal.console import console


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(help="learners, guidances, datasets, protocols, models, recipes, schedules, train, engine …"),
    ] = None,
    which: Annotated[str, typer.Argument(help='Beginning of a name, or a pattern such as "table1/*g20*".')] = "",
) -> None:
    """List the available parts, with every option and its default.

    Example: `mnar list guidances`
    """
    from mnar.terminal.listing import listing

    for line in listing(kind, which):
        console.print(line, highlight=False, soft_wrap=not console.is_terminal)
