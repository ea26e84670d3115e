"""Read the docstrings of mnar, which are plain text, and turn them into reStructuredText for Sphinx.

A docstring consists of blocks that are separated by blank lines. Four kinds of block occur:

- a paragraph
- a bullet list
- an aligned list: a name, two or more spaces, the meaning of the name; further lines of the meaning are indented
- a block that is indented as a whole, or a table with three or more columns: shown as it stands
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

ENTRY = re.compile(r"(?P<name>\S+(?: \S+)*) {2,}(?P<meaning>\S.*)")
NAMES_ALONE = re.compile(r"[\w*]+(, [\w*]+)*")
EQUATION = re.compile(r" {2,}Eq\. .*")  # the number of an equation, behind a meaning
CODE = re.compile(r"(``.+?``|`[^`]+`)")
EMPTY = "\\ "  # text that shows nothing
SPECIAL = re.compile(r"([\\*|_`])")


def to_rst(text: str) -> str:
    """The docstring `text` as reStructuredText."""
    return "\n\n".join(_block_to_rst(block) for block in _blocks(text))


def entries(text: str) -> dict[str, str]:
    """The meanings in the aligned lists and tables of a docstring, by name. A name may stand in any column."""
    found: dict[str, str] = {}
    for block in map(_dedented, _blocks(text)):
        for names, meaning in _table(block) if _is_table(block) else _aligned(block):
            for name in names:
                found.setdefault(name, meaning)
    return found


def option_meanings(make: Callable[..., Any]) -> dict[str, str]:
    """What each parameter of a class or function means, from the docstrings of the class, its bases and its module."""
    while isinstance(make, partial):
        make = make.func
    sources: list[Any] = [*(make.__mro__ if inspect.isclass(make) else (make,))]
    sources = [source for source in sources if source.__module__.startswith("mnar")]
    meanings: dict[str, str] = {}
    for source in [*sources, *(inspect.getmodule(source) for source in sources)]:
        for name, meaning in entries(inspect.getdoc(source) or "").items():
            meanings.setdefault(name, meaning)
    return meanings


def field_list(cls: type) -> str:
    """The fields of a NamedTuple or dataclass, with their types and the comments behind them, as a bullet list."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    items = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
            kind = f"``{ast.unparse(node.annotation)}{default}``"
            meaning = _inline(comments.get(node.end_lineno or node.lineno, ""))
            items.append(f"- **{node.target.id}**: {kind}" + (f" – {meaning}" if meaning else ""))
    return "\n".join(items)


def _blocks(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        if line.strip():
            block.append(line.rstrip())
        elif block:
            yield block
            block = []


def _dedented(block: list[str]) -> list[str]:
    margin = min(len(line) - len(line.lstrip()) for line in block)
    return [line[margin:] for line in block]


def _block_to_rst(block: list[str]) -> str:
    if all(line.startswith("  ") for line in block) or _is_table(block):
        return "::\n\n" + "\n".join(f"    {line}" for line in _dedented(block))
    if block[0].startswith("- "):
        return "\n".join(_inline(line) if not line.startswith("- ") else "- " + _inline(line[2:]) for line in block)
    pairs = list(_aligned(block))
    if pairs:
        return "\n".join(
            f"{', '.join(f'``{name}``' for name in names)}\n    {_inline(meaning) or EMPTY}" for names, meaning in pairs
        )
    return "\n".join(map(_inline, block))


def _is_table(block: list[str]) -> bool:
    return len(re.findall(r" {2,}", block[0].strip())) > 1


def _table(block: list[str]) -> Iterator[tuple[list[str], str]]:
    """The rows of a table whose last column is called "meaning": the names before it, and the meaning itself."""
    start = block[0].find("meaning")
    rows: list[tuple[list[str], str]] = []
    for line in block[1:] if start > 0 else ():
        left, meaning = line[:start].strip(), EQUATION.sub("", line[start:]).strip()
        if left or not rows:
            rows.append(([name for column in re.split(r" {2,}", left) for name in column.split(", ")], meaning))
        else:
            names, begun = rows[-1]
            rows[-1] = names, f"{begun} {meaning}"
    yield from rows


def _aligned(block: list[str]) -> Iterator[tuple[list[str], str]]:
    """Names and their meaning; nothing if the block is not an aligned list."""
    rows: list[tuple[list[str], str]] = []
    for line in block:
        if line.startswith("  ") and rows:
            names, meaning = rows[-1]
            rows[-1] = names, f"{meaning} {line.strip()}".strip()
        elif entry := ENTRY.fullmatch(line):
            rows.append((entry["name"].split(", "), entry["meaning"]))
        elif NAMES_ALONE.fullmatch(line) and (rows or len(block) > 1):
            rows.append((line.split(", "), ""))
        else:
            return
    if any(meaning for _, meaning in rows):
        yield from rows


def _inline(text: str) -> str:
    """Escape what reStructuredText would read as markup; `code` becomes ``code``."""
    parts = CODE.split(text)
    return "".join(
        f"``{part.strip('`').strip()}``" if CODE.fullmatch(part) else SPECIAL.sub(r"\\\1", part) for part in parts
    )
