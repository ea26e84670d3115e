"""Optional dropout layers of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mnar import distributed


class Dropout(nn.Dropout):
    """Dropout in which every process has its own masks, although the random generators of all processes stay equal."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or distributed.num_parts() == 1:
            return super().forward(input)
        whole = distributed.num_parts() * len(input)
        uniforms = distributed.own_rows(torch.rand(whole, *input.shape[1:], device=input.device))
        return input * (uniforms >= self.p) / (1 - self.p)


def dropout_layers(rate: float) -> tuple[nn.Dropout, ...]:
    """Return one dropout layer, or no layer for rate 0.

    Without a layer for rate 0, the other layers have the same names in the state dict as in a model that has no
    dropout option.
    """
    return (Dropout(rate),) if rate > 0 else ()
