"""The pages of the documentation, and the fenced blocks in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The pages whose commands and Python code the tests run from top to bottom.
TUTORIALS = ("digits", "images", "table", "label_next")
EXECUTED = ("README.md", "docs/quickstart.md", "docs/features.md", *(f"docs/tutorials/{name}.md" for name in TUTORIALS))


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # of its first line, in the page


def all_pages() -> list[str]:
    """Every Markdown page of the site, and those in the root of the repository, as paths relative to the root."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in pages if "_build" not in page.parts)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> Iterator[Block]:
    """The fenced blocks in one of the languages, in order."""
    text = text_of(page)
    for found in FENCE.finditer(text):
        if found[1] in languages:
            yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)


def commands(block: Block) -> list[list[str]]:
    """The words of each command in a `sh` block, without comments; a backslash at the end continues a line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]
