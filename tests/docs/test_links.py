"""Every relative link on a page leads to a file, and every anchor to a heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, ROOT, all_pages, text_of

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?[^()\s]*)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def prose(page: str) -> str:
    """A page without its fenced blocks and its inline code."""
    return re.sub(r"`[^`\n]*`", "code", FENCE.sub("", text_of(page)))


@cache
def anchors(page: str) -> set[str]:
    """The anchors of the headings, as GitHub and MyST make them."""
    titles = HEADING.findall(FENCE.sub("", text_of(page)))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", all_pages())
def test_relative_links_lead_to_files_and_headings(page: str) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(str(target.relative_to(ROOT))):
            broken.append(f"{link}: {Path(target).name} has no such heading")
    assert broken == []
