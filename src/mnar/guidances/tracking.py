"""Tracking: what PRG would see in a learner that it does not guide (Duan et al., ICCV 2023, Fig. 4).

Tracks class transitions as PRG does, and rectifies nothing: C of plain FixMatch, to stand beside C of FixMatch + PRG.
"""

from __future__ import annotations

from torch import Tensor

from mnar.guidances.guidance import Guidance
from mnar.guidances.prg import PRG
from mnar.types import Task


class Tracking(Guidance):
    """window        how many batches C looks back"""

    paper = "Duan et al., ICCV 2023; tracks class transitions as PRG does, and rectifies nothing"

    def __init__(self, task: Task, *, window: int = 128) -> None:
        super().__init__(task)
        self.tracker = PRG(task, window=window)

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.tracker(probs, index)  # checks both, and counts
        return probs.detach().float()

    @property
    def transitions(self) -> Tensor:
        """C: how often a sample moved from class i to class j within the window, [k, k]."""
        return self.tracker.transitions

    def logs(self) -> dict[str, Tensor]:
        return {"transitions": self.transitions.sum()}

    def matrices(self) -> dict[str, Tensor]:
        return self.tracker.matrices()
