"""Supervised training on the labelled samples alone: the baseline that every semi-supervised method has to beat."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from mnar.learners.learner import Learner
from mnar.types import Batch, Step


class Supervised(Learner):
    paper = "the baseline"
    views = ()
    suits = ("images", "tables")
    is_guided = False

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        loss = F.cross_entropy(model(batch.x).float(), batch.y)
        return Step(loss, {})
