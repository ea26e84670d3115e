"""Sharpening and MixUp (Zhang et al., ICLR 2018) as MixMatch and ReMixMatch use them: an own draw for each row."""

from __future__ import annotations

import torch
from torch import Tensor


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """[n, k] -> p^(1/T), normalised. In logarithms, since 0.001^(1/T) is nothing in float32 for a small T."""
    return (probs.log() / temperature).softmax(1)


def draw_mixing(num_rows: int, alpha: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each row: the weight that it keeps, max(l, 1-l) with l ~ Beta(alpha, alpha), and the row it is mixed with.

    From the device's default generator, without a host sync: a Beta variable is a Gamma variable's share of two.
    """
    # Gamma(a) is Gamma(a + 1) * U^(1/a). In logarithms, since for a small alpha both may be nothing in float32.
    gamma = torch._standard_gamma(torch.full((2, num_rows), alpha + 1, device=device))
    minus_log_uniform = torch.empty(2, num_rows, device=device).exponential_()
    one, other = gamma.log() - minus_log_uniform / alpha
    weight = (one - other).abs().sigmoid()  # the sigmoid of the difference is l, of its negative 1-l
    return weight, torch.rand(num_rows, device=device).argsort()


def mix(rows: Tensor, weight: Tensor, order: Tensor) -> Tensor:
    """weight * rows + (1 - weight) * rows[order], each row with its own weight; images and targets alike."""
    return rows[order].lerp(rows, weight.view(-1, *[1] * (rows.ndim - 1)))
