"""No guidance: the pseudo-label as the model made it. A guidance like any other, so no learner has an `if`."""

from __future__ import annotations

from torch import Tensor

from mnar.guidances.guidance import Guidance


class NoGuidance(Guidance):
    paper = "the pseudo-label as it is"

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        return probs.detach().float()
