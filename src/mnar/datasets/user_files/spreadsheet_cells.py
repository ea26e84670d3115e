"""Write cells so that a spreadsheet shows them as text, and read such cells back.

A spreadsheet runs a cell that begins with =, +, - or @ as a formula. A quote before the cell prevents this.
"""

from __future__ import annotations

STARTS_OF_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
QUOTE = "'"


def safe_cell(text: str) -> str:
    """Return the text of a cell, with a quote before it if a spreadsheet would run it as a formula.

    A number such as -5 is no formula. A text that already has a quote before a formula gets a second one, so that
    `plain_cell` gives back the original.
    """
    stripped = text.lstrip(QUOTE)
    is_number = text.startswith(("+", "-")) and _is_number(text)
    if is_number or not stripped.startswith(STARTS_OF_FORMULAS):
        return text
    return QUOTE + text


def plain_cell(text: str) -> str:
    """Return the text that `safe_cell` was given."""
    if text.startswith(QUOTE) and safe_cell(text[1:]) == text:
        return text[1:]
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
