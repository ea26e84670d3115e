"""No guidance: the pseudo-label is the prediction of the model.

NoGuidance is a guidance like any other, so that a learner needs no special case for a run without guidance.
"""

from __future__ import annotations

from torch import Tensor

from mnar.guidances.guidance import Guidance


class NoGuidance(Guidance):
    """Return every prediction unchanged."""

    paper = "the pseudo-label as it is"

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        return probs.detach().float()
