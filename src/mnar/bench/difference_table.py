"""The table of paired differences as text: shared by the terminal and the result files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mnar.bench.cell import Cell
from mnar.bench.paired import Comparison, comparisons
from mnar.bench.rows import METHOD, NONE, SETTING, SHORT_TITLES
from mnar.training.metrics import headline_metrics

REFERENCE = "reference"
ABOUT_DIFFERENCES = (
    "Paired differences are method minus reference in percentage points, for runs with the same seed: the mean over n "
    "seeds (95 % interval of the mean)."
)


class DifferenceTable(NamedTuple):
    """The title names the number of seeds. Each row has the columns of `difference_headings()`."""

    title: str
    rows: list[dict[str, str]]


def difference_headings() -> dict[str, str]:
    """The columns of a table of paired differences by name, with their headings."""
    scores = {metric.name: SHORT_TITLES.get(metric.name, metric.title) for metric in headline_metrics()}
    return {SETTING: "setting", METHOD: "method", REFERENCE: "reference", **scores, "n": "n"}


def difference_table(cells: Sequence[Cell]) -> DifferenceTable | None:
    """The paired differences between methods of the same setting, or None if there is nothing to compare."""
    compared = comparisons(cells)
    if not compared:
        return None
    nums = sorted({len(comparison.seeds) for comparison in compared})
    num_seeds = str(nums[0]) if len(nums) == 1 else f"{nums[0]} to {nums[-1]}"
    return DifferenceTable(f"Paired differences over {num_seeds} seeds", [_row(comparison) for comparison in compared])


def _row(compared: Comparison) -> dict[str, str]:
    cells = {
        SETTING: compared.cell.setting,
        METHOD: compared.cell.method,
        REFERENCE: compared.reference.method,
        **{metric: difference.points for metric, difference in compared.differences.items()},
        "n": str(len(compared.seeds)),
    }
    return {column: cells.get(column, NONE) for column in difference_headings()}
