"""Check the names of classes that a merge would add to the user's data."""

from __future__ import annotations

import unicodedata

from mnar.datasets.user_files.spreadsheet_cells import safe_cell

UNWANTED = ("Cc", "Zl", "Zp", "Cs")  # Unicode categories: control characters, line breaks, halves of a character


def check_new_class(name: str, where: str) -> None:
    """Raise an error if a name is unfit for a class. `where` names the annotation that has it.

    The name becomes a cell of the user's own file, where a quote against formulas would be part of the class.
    """
    reason = ""
    if any(unicodedata.category(character) in UNWANTED for character in name):
        reason = "contains a control character or a line break"
    elif safe_cell(name) != name:
        reason = "begins like a formula, which a spreadsheet would run"
    if reason:
        raise ValueError(
            f"{where}: the new class {name!r} {reason}. Nothing was changed. Give the class another name in the "
            "annotations"
        )
