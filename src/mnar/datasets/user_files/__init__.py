"""Read the user's own half-labelled files: images with a CSV, class folders, tables, arrays, Hugging Face data sets.

Every reader returns a `PartlyLabeled`: samples, of which some have a label. `read_data` recognises what a path is and
calls the right reader. The folder exports `read_data` and its result: `PartlyLabeled`, `Table` for features of mixed
kinds, and `UNLABELED`, the class number of a sample without a label. `read_data_like` reads other data for a trained
model.

image_cache.py, with image_store.py and image_decode.py, keeps decoded images on disk; mini-ImageNet uses it too.
all_images.py loads the images of a source without their labels, through the same cache.
"""

from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table
from mnar.datasets.user_files.read_data import read_data
from mnar.datasets.user_files.read_data_like import read_data_like

__all__ = ["UNLABELED", "PartlyLabeled", "Table", "read_data", "read_data_like"]
