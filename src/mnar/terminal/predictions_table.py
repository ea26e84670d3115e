"""Tables that `mnar predict`, `mnar relabel` and `mnar next` print: one line per class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.markup import escape
from rich.table import Table

from mnar.own_data.decisions import DECISIONS

if TYPE_CHECKING:
    from mnar.trained.next_labels import Chosen
    from mnar.trained.predict import Predicted
    from mnar.trained.relabel import Relabeled

MOST_CLASSES = 30


def predictions_table(predicted: Predicted, class_names: Sequence[str]) -> Table:
    """How often each class was predicted."""
    total = max(1, int(predicted.counts.sum()))
    rows = [
        (name, f"{count:,}", f"{count / total:.1%}") for name, count in zip(class_names, predicted.counts, strict=True)
    ]
    return _table(("class", "predictions", "share"), rows)


def decisions_table(relabeled: Relabeled, class_names: Sequence[str]) -> Table:
    """How many labels of each class are accepted, and the precision that they are expected to have."""
    rows = []
    for c, name in enumerate(class_names):
        expected = relabeled.decisions.expected_precision[c]
        promised = relabeled.decisions.promises[c] and not np.isnan(expected)
        counts = [f"{count:,}" for count in relabeled.counts[c].tolist()]
        rows.append((name, *counts, f"{expected:.1%}" if promised else "no promise"))
    return _table(("class", *DECISIONS, "expected precision of accepted labels"), rows)


def chosen_table(chosen: Chosen, class_names: Sequence[str]) -> Table:
    """How many samples were chosen, by their predicted class."""
    rows = [(name, f"{count:,}") for name, count in zip(class_names, chosen.counts, strict=True)]
    return _table(("predicted class", "samples to label"), rows)


def _table(columns: Iterable[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows[:MOST_CLASSES]:
        table.add_row(escape(row[0]), *row[1:])
    if len(rows) > MOST_CLASSES:
        table.add_row(f"… and {len(rows) - MOST_CLASSES} more classes", *[""] * (len(rows[0]) - 1))
    return table
