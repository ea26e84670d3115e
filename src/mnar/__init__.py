"""mnar: semi-supervised learning when labels are missing not at random."""

from typing import Any

from mnar.guidances import GUIDANCES, PRG, Chain, Guidance, NoGuidance
from mnar.learners import LEARNERS, FixMatch, Learner, Supervised
from mnar.types import Batch, Counts, Split, Step, Task

__version__ = "0.2.0"

# These names take long to import, the first three because of scikit-learn, so they are loaded on first use.
ON_DEMAND = {
    **dict.fromkeys(("MNARClassifier", "LabeledOnlyKFold", "self_training"), "mnar.sklearn_api"),
    "load": "mnar.trained",
}


def __getattr__(name: str) -> Any:
    if name not in ON_DEMAND:
        raise AttributeError(f"module 'mnar' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(ON_DEMAND[name]), name)


__all__ = [
    "GUIDANCES",
    "LEARNERS",
    "PRG",
    "Batch",
    "Chain",
    "Counts",
    "FixMatch",
    "Guidance",
    "LabeledOnlyKFold",
    "Learner",
    "MNARClassifier",
    "NoGuidance",
    "Split",
    "Step",
    "Supervised",
    "Task",
    "load",
    "self_training",
]
