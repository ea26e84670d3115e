"""The public names of a package as autodoc directives, so that a new public name is documented without further work."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import mnar

# A package stands after those whose names it repeats, so that every name has one home.
HOMES = ("mnar.guidances", "mnar.learners", "mnar.types", "mnar.sklearn_api", "mnar.trained")


def names(module_name: str) -> list[str]:
    """The names in `__all__`, interfaces first, or the public classes and functions that the module defines."""
    module = import_module(module_name)
    if hasattr(module, "__all__"):
        values = [getattr(module, name) for name in module.__all__]
        bases = {id(base) for value in values if inspect.isclass(value) for base in value.__mro__[1:]}
        return sorted(module.__all__, key=lambda name: (id(getattr(module, name)) not in bases, name.lower()))
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module_name and callable(value)
    ]


def home_of(name: str) -> str:
    """The full name under which a name of `mnar.__all__` is documented."""
    for module_name in HOMES:
        if name in names(module_name):
            return f"{module_name}.{name}"
    raise LookupError(
        f"mnar.{name} is public, but none of {HOMES} has it; add its package to docs/_ext/public_names.py"
    )


def index() -> str:
    """A table of `mnar.__all__`, each name with a link to its documentation."""
    rows = ["| name | kind | documented as |", "| --- | --- | --- |"]
    for name in mnar.__all__:
        value = getattr(mnar, name)
        kind = "class" if inspect.isclass(value) else "table of names" if isinstance(value, Mapping) else "function"
        rows.append(f"| `mnar.{name}` | {kind} | {{py:obj}}`{home_of(name)}` |")
    return "\n".join(rows)


def directives(module_name: str, only: list[str] | None = None) -> str:
    """One autodoc directive per public name, in an eval-rst block."""
    module = import_module(module_name)
    lines = [f".. py:currentmodule:: {module_name}", ""]
    for name in only or names(module_name):
        lines += [*_directive(module_name, name, getattr(module, name)), ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _directive(module_name: str, name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from (f".. autoclass:: {module_name}.{name}", "   :members:", "   :show-inheritance:")
    elif inspect.isfunction(value):
        yield f".. autofunction:: {module_name}.{name}"
    else:
        yield from (f".. py:data:: {name}", "")
        if isinstance(value, Mapping):
            entries = ", ".join(f"``{key}``" for key in value) if len(value) < 50 else f"{len(value)} entries"
            yield f"   A dictionary from names to parts: {entries}."
        else:
            yield f"   ``{value!r}``" if isinstance(value, str | int | float) else "   A type."
