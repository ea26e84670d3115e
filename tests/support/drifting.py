"""Predictions as a training makes them: of batches of any size, and of other classes as time goes by."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def drifting_batches(
    count: int, *, num_classes: int, num_unlabeled: int, largest: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Probabilities and the rows they are of."""
    generator = torch.Generator().manual_seed(0)
    for n in range(count):
        size = int(torch.randint(1, largest + 1, (), generator=generator))
        preference = torch.tensor([math.sin(n / 20 + c) for c in range(num_classes)])
        logits = 3 * torch.randn(size, num_classes, generator=generator) + preference
        yield logits.softmax(1), torch.randint(num_unlabeled, (size,), generator=generator)
