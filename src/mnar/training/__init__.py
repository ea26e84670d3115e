"""Train a model: the loader makes batches, the trainer takes steps, the engine executes them, evaluation scores them.

trainer.py holds the training loop. Everything here works on objects; run/assemble.py builds them from names.
"""

from mnar.training.engine import Engine
from mnar.training.loader import Loader
from mnar.training.options import EngineOptions, TrainOptions
from mnar.training.recorder import Recorder
from mnar.training.trainer import Interrupted, Trainer, train

__all__ = ["Engine", "EngineOptions", "Interrupted", "Loader", "Recorder", "TrainOptions", "Trainer", "train"]
