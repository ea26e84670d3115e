"""A head that learners compare images by: features to points on the unit sphere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOWEST = torch.finfo(torch.float32).min  # 0 after a softmax; and, unlike -inf, 0 times its logarithm is 0


class Projection(nn.Module):
    """Linear, activation, linear, and then length 1: the dot product of two outputs is their cosine."""

    def __init__(self, num_features: int, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_features, num_features), activation, nn.Linear(num_features, dim))

    def forward(self, features: Tensor) -> Tensor:
        """[n, num_features] -> [n, dim], float32"""
        return F.normalize(self.layers(features.float()), dim=1)


def similarity(embeddings: Tensor, bank: Tensor, filled: Tensor, temperature: float) -> Tensor:
    """Cosine over temperature with every row of a bank, [n, rows]; a row that is not filled is out of any softmax."""
    return (embeddings / temperature @ bank.T).masked_fill(~filled, LOWEST)
