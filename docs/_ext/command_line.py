"""Every command of `mnar` with its options, as Markdown, from the Typer application itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from mnar.cli import app

TYPES = {"<path>": "PATH", "<str>": "TEXT", "<int>": "NUMBER", "<int range>": "NUMBER", "<float>": "NUMBER"}
AT_LEAST = re.compile(r"\[(.*?)(; )?x>=(\d+)\]")
LIST = re.compile(r"<list\[(\w+)\]>")


def commands() -> dict[str, Any]:
    """The commands by name, as Typer makes them."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def markdown() -> str:
    """One section per command."""
    group = typer.main.get_command(app)
    above = group.context_class(group, info_name="mnar")
    return "\n".join(line for name, command in commands().items() for line in _section(name, command, above))


def _section(name: str, command: Any, above: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=name, parent=above)
    yield from (f"## `mnar {name}`", "", inspect.cleandoc(command.help or ""), "")
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    for typers, plain in {"[[": "[", "]]": "]", "{": "", "}": ""}.items():
        usage = usage.replace(typers, plain)
    yield from ("```text", usage, "```", "")
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    if records:
        yield from ("| argument or option | meaning |", "| --- | --- |")
        yield from (f"| `{_plain_types(left)}` | {_cell(AT_LEAST.sub(_bound, right))} |" for left, right in records)
        yield ""


def _bound(found: re.Match[str]) -> str:
    """[default: 4; x>=1] becomes [default: 4; at least 1]."""
    return f"[{found[1]}{found[2] or ''}at least {found[3]}]"


def _plain_types(text: str) -> str:
    if not text.startswith("-"):
        return text.partition(" <")[0]  # an argument: its name says what it is
    text = LIST.sub(r"<\1>", text)
    for written, plain in TYPES.items():
        text = text.replace(written, plain)
    return _cell(text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
