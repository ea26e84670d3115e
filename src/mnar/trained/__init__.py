"""Use the model of a finished run: predict new data, label the pool, choose what to label next, merge, export.

load.py reads a run folder and returns a `TrainedModel` (model.py). The other files are one command each.
"""

from mnar.trained.load import load
from mnar.trained.model import TrainedModel

__all__ = ["TrainedModel", "load"]
