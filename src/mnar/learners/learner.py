"""What a learner is: how the labelled and the unlabelled part of a batch become one loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from mnar.guidances.guidance import Guidance
from mnar.types import Batch, Step, Task


class Learner(nn.Module):
    """Forms the loss of a batch; the loop does the rest.

    A learner has no parameters: those are the model's. Like a guidance, it keeps what state it has in buffers. One
    that makes pseudo-labels tells which by `note_pseudo_labels`, so that their quality can be logged.
    """

    views: ClassVar[tuple[str, ...]]  # of the unlabelled batch, e.g. ("weak", "strong")
    pseudo_labels: Tensor

    def __init__(self, task: Task, guidance: Guidance) -> None:
        super().__init__()
        self.task = task
        self.guidance = guidance
        # The class that each row of the last unlabelled batch was trained as; -1: none. Read by the log only.
        nobody = torch.full((task.batch_unlabeled,), -1)
        self.register_buffer("pseudo_labels", nobody, persistent=False)

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        raise NotImplementedError

    def note_pseudo_labels(self, target: Tensor, mask: Tensor) -> None:
        """Remember what was trained as what, for the log: [n] classes, [n] whether they were used."""
        self.pseudo_labels.fill_(-1)
        self.pseudo_labels[: len(target)] = torch.where(mask, target, -1)
