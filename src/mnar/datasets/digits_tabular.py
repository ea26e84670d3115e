"""Load the handwritten digits of scikit-learn as a table of 64 grey levels; no download is needed."""

from __future__ import annotations

from pathlib import Path

from mnar.datasets.digits import digits
from mnar.datasets.pixel_table import pixel_table
from mnar.types import DataSet


def digits_tabular(root: Path | None = None) -> DataSet:
    """Return the digits as a table. `root` is not used, because the digits come with scikit-learn."""
    return pixel_table(digits(root))
