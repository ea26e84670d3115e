"""Load MNIST as a table of 784 grey levels."""

from __future__ import annotations

from pathlib import Path

from mnar.datasets.mnist import mnist
from mnar.datasets.pixel_table import pixel_table
from mnar.types import DataSet


def mnist_tabular(root: Path | None = None) -> DataSet:
    """Return MNIST as a table. `root` is as in `mnist`."""
    return pixel_table(mnist(root))
