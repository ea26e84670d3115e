"""The linear head of a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NUM_PARTS = 16


class Head(nn.Linear):
    """A linear layer. In training on a GPU it divides the batch into parts, each with its own gradient of the weight.

    The gradient of the weight has few entries, and each is a sum over the whole batch. For 10 classes and 960 samples,
    cuBLAS uses a single multiprocessor, which takes 55 µs on an H200.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and torch.is_grad_enabled() and x.ndim == 2 and len(x) % NUM_PARTS == 0:
            return linear_in_parts(x, self.weight, self.bias)
        return super().forward(x)


def linear_in_parts(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x weight^T + bias as a batch of NUM_PARTS products. Autograd adds up the gradients of the products."""
    parts = x.reshape(NUM_PARTS, -1, x.shape[1])
    return torch.baddbmm(bias, parts, weight.expand(NUM_PARTS, -1, -1).mT).flatten(0, 1)
