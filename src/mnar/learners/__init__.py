"""How labelled and unlabelled losses are formed."""

from __future__ import annotations

from mnar.learners.fixmatch import FixMatch
from mnar.learners.learner import Learner
from mnar.learners.supervised import Supervised

LEARNERS: dict[str, type[Learner]] = {
    "supervised": Supervised,
    "fixmatch": FixMatch,
}

__all__ = ["LEARNERS", "FixMatch", "Learner", "Supervised"]
