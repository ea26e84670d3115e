"""mnar: semi-supervised learning when labels are missing not at random."""

from mnar.guidances import GUIDANCES, PRG, Chain, Guidance, NoGuidance
from mnar.learners import LEARNERS, FixMatch, Learner, Supervised
from mnar.types import Batch, Counts, Split, Step, Task

__version__ = "0.1.0"

__all__ = [
    "GUIDANCES",
    "LEARNERS",
    "PRG",
    "Batch",
    "Chain",
    "Counts",
    "FixMatch",
    "Guidance",
    "Learner",
    "NoGuidance",
    "Split",
    "Step",
    "Supervised",
    "Task",
]
