"""scikit-learn's handwritten digits as a table of 64 grey levels, which needs no download."""

from __future__ import annotations

from pathlib import Path

from mnar.datasets.digits import digits
from mnar.datasets.pixel_table import pixel_table
from mnar.types import DataSet


def digits_tabular(root: Path | None = None) -> DataSet:
    """`root` is not used: the rows come with scikit-learn."""
    return pixel_table(digits(root))
