"""A head that maps features to points on the unit sphere. Learners compare images by these points."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The similarity to an empty row. A softmax turns it into 0. Its log-softmax is finite, so that 0 times the log-softmax
# is 0 and not NaN, as it would be with -inf.
LOWEST = torch.finfo(torch.float32).min


class Projection(nn.Module):
    """Linear layer, activation, linear layer, and normalisation to length 1.

    The dot product of two outputs is the cosine of their angle.
    """

    def __init__(self, num_features: int, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_features, num_features), activation, nn.Linear(num_features, dim))

    def forward(self, features: Tensor) -> Tensor:
        """Return the embeddings [n, dim] in float32 of the features [n, num_features]."""
        return F.normalize(self.layers(features.float()), dim=1)


def similarity(embeddings: Tensor, bank: Tensor, filled: Tensor, temperature: float) -> Tensor:
    """Return the cosine similarity to every row of the bank, divided by the temperature: [n, rows].

    `filled` [rows] says which rows of the bank hold an embedding. The other rows get no share in a softmax.
    """
    return (embeddings / temperature @ bank.T).masked_fill(~filled, LOWEST)
