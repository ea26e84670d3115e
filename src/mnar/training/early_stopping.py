"""Early stopping: keep the model with the lowest loss on labels that are held out from training."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.models import Classifier


class BestSoFar:
    """Keeps a copy of the watched model whenever its loss on the held-out labels is the lowest so far.

    `update` contains only device work. After `patience` steps without a lower loss it stops looking, so training may
    continue for a few steps until the loop reads `gave_up`.
    """

    def __init__(self, watched: Classifier, network: nn.Module, x: Tensor, y: Tensor, *, patience: int) -> None:
        self.watched, self.network, self.x, self.y, self.patience = watched, network, x, y, patience
        self.model = copy.deepcopy(watched).eval()
        self.loss = torch.full((), math.inf, device=x.device)
        self.waited = torch.zeros((), dtype=torch.int64, device=x.device)

    @torch.no_grad()
    def update(self) -> None:
        with evaluating(self.watched):
            loss = F.cross_entropy(self.network(self.x).float(), self.y)
        better = (loss < self.loss) & ~self.gave_up
        self.loss.copy_(torch.where(better, loss, self.loss))
        self.waited.copy_(torch.where(better, 0, self.waited + 1))
        for kept, now in zip(_tensors(self.model), _tensors(self.watched), strict=True):
            kept.copy_(torch.where(better, now, kept))

    @property
    def gave_up(self) -> Tensor:
        return self.waited >= self.patience

    def restart(self) -> None:
        """Start the search again, for the next generation."""
        self.loss.fill_(math.inf)
        self.waited.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "loss": self.loss, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.loss.copy_(state["loss"])
        self.waited.copy_(state["waited"])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
