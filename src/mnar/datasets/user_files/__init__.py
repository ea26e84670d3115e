"""Read a user's own half-labelled files: images with a CSV, class folders, tables, arrays, Hugging Face data sets.

Every reader returns a `PartlyLabeled`: samples, of which some have a label. `read_data` chooses the reader.
"""

from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table
from mnar.datasets.user_files.read_data import read_data

__all__ = ["UNLABELED", "PartlyLabeled", "Table", "read_data"]
