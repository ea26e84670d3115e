"""Tracking: count the transitions that PRG would see in a run without guidance (Duan et al., ICCV 2023, Fig. 4).

Tracking counts class transitions as PRG does and changes no pseudo-label. A report can then compare C of plain FixMatch
with C of FixMatch + PRG.
"""

from __future__ import annotations

from torch import Tensor

from mnar.guidances.guidance import Guidance
from mnar.guidances.prg import PRG
from mnar.option_values import Window, checked_options
from mnar.types import Task


class Tracking(Guidance):
    """Count class transitions like PRG, and return every prediction unchanged.

    window    number of recent batches that C covers
    """

    paper = "Duan et al., ICCV 2023; tracks class transitions as PRG does, and rectifies nothing"

    @checked_options
    def __init__(self, task: Task, *, window: Window = 128) -> None:
        super().__init__(task)
        self.tracker = PRG(task, window=window)

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.tracker(probs, index)  # checks the input and counts the transitions
        return probs.detach().float()

    @property
    def transitions(self) -> Tensor:
        """C: how often a sample moved from class i to class j within the window, [k, k]."""
        return self.tracker.transitions

    def logs(self) -> dict[str, Tensor]:
        return {"transitions": self.transitions.sum()}

    def matrices(self) -> dict[str, Tensor]:
        return self.tracker.matrices()
