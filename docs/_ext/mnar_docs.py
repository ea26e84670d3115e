"""The Sphinx extension of this site: generated parts of pages, docstrings of the house, and links to source files.

A page asks for a generated part with an HTML comment on a line of its own:

    <!-- generated: command line -->
    <!-- generated: configuration -->
    <!-- generated: defaults by data set -->
    <!-- generated: metrics -->
    <!-- generated: index of mnar -->
    <!-- generated: names of mnar.guidances -->
    <!-- generated: names of mnar.datasets.user_files: PartlyLabeled, read_data -->
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import command_line
import configuration
import metrics_table
import public_names
from docstrings import field_list, to_rst
from sphinx.application import Sphinx
from sphinx.util import logging

GENERATED = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)
SOURCE_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)src/(mnar/[\w/]+)\.py\)")
logger = logging.getLogger(__name__)
linked_modules: set[str] = set()


def generate(what: str) -> str:
    """The generated part that a comment asks for."""
    if what == "command line":
        return command_line.markdown()
    if what == "configuration":
        return configuration.markdown()
    if what == "defaults by data set":
        return configuration.defaults_by_dataset()
    if what == "metrics":
        return metrics_table.markdown()
    if what == "index of mnar":
        return public_names.index()
    if what.startswith("names of "):
        module, _, only = what.removeprefix("names of ").partition(": ")
        return public_names.directives(module, only.split(", ") if only else None)
    raise ValueError(f"unknown generated part {what!r}; docs/_ext/mnar_docs.py lists those that exist")


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the generated parts into a page, and let links to Python files lead to the highlighted source."""

    def highlighted(link: re.Match[str]) -> str:
        text, _, module = link.groups()
        linked_modules.add(module)
        return f'<a href="{"../" * page.count("/")}_modules/{module}.html">{text.replace("`", "")}</a>'

    source[0] = GENERATED.sub(lambda comment: generate(comment[1]), source[0])
    source[0] = SOURCE_LINK.sub(highlighted, source[0])


def write_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Translate a docstring. A class without one is explained by its module, which has the paper and the symbols."""
    text = "\n".join(lines)
    if what == "class":
        own = obj.__dict__.get("__doc__") or ""
        is_automatic = own.startswith(f"{obj.__name__}(")  # what NamedTuple and dataclass write
        text = "" if is_automatic else inspect.cleandoc(own)
        if not text and not is_record(obj):
            text = inspect.getdoc(sys.modules[obj.__module__]) or ""
    lines[:] = to_rst(text).splitlines()
    if what == "class" and is_record(obj) and (fields := field_list(obj)):
        lines += ["", *fields.splitlines()]
    lines.append("")


def is_record(obj: Any) -> bool:
    """Whether a class is a NamedTuple, a dataclass or a TypedDict: a list of fields."""
    return dataclasses.is_dataclass(obj) or hasattr(obj, "_fields") or hasattr(obj, "__total__")


def skip_fields(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields of records are in the list that `write_docstring` adds."""
    return True if type(obj).__name__ in ("_tuplegetter", "member_descriptor") else None


def check_source_links(app: Sphinx, error: Exception | None) -> None:
    """Every link to a Python file must lead to a page of sphinx.ext.viewcode."""
    if error is None and app.builder.name == "html":
        for module in sorted(linked_modules):
            if not (Path(app.outdir) / "_modules" / f"{module}.html").exists():
                logger.warning("a page links to the source of %s, which no page of the reference documents", module)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", write_docstring)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("build-finished", check_source_links)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
