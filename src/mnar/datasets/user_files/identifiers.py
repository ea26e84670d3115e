"""Check the column of the user's file that identifies the samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def identifiers(cells: Sequence[str | None] | None, where: str) -> tuple[list[str] | None, list[str]]:
    """Return the ids as texts, "" if one is missing, and notes on missing and repeated ids.

    `cells` is None if the user named no id column. The notes begin with `where`, the file.
    """
    if cells is None:
        return None, []
    ids = ["" if cell is None else cell.strip() for cell in cells]
    times = Counter(ids)
    num_missing = times.pop("", 0)
    notes = []
    if num_missing:
        notes.append(f"{where}: {num_missing:,} rows have no id; use the row number for them")
    repeated = {text: count for text, count in times.items() if count > 1}
    if repeated:
        first = next(iter(repeated))
        notes.append(
            f"{where}: {sum(repeated.values()):,} rows share their id with another row, e.g. {first!r} in "
            f"{repeated[first]:,} rows; use the row number to tell them apart"
        )
    return ids, notes
