"""Sharpening and MixUp (Zhang et al., ICLR 2018) for MixMatch and ReMixMatch: every row gets its own random draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mnar import distributed


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """Return p^(1/T), normalised, for the rows p of `probs` [n, k].

    The function works with logarithms, since 0.001^(1/T) rounds to 0 in float32 for a small T.
    """
    return (probs.log() / temperature).softmax(1)


def draw_mixing(num_rows: int, alpha: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw, for each row, the weight that the row keeps and the row that it is mixed with.

    The weight is max(l, 1-l) with l ~ Beta(alpha, alpha). The draw uses the default generator of the device and needs
    no host sync. A Beta variable is g1 / (g1 + g2) for two Gamma variables g1 and g2.
    """
    # Gamma(a) has the distribution of Gamma(a + 1) * U^(1/a), U uniform. The code works with logarithms, since for a
    # small alpha both Gamma variables may round to 0 in float32.
    gamma = torch._standard_gamma(torch.full((2, num_rows), alpha + 1, device=device))
    minus_log_uniform = torch.empty(2, num_rows, device=device).exponential_()
    one, other = gamma.log() - minus_log_uniform / alpha
    weight = (one - other).abs().sigmoid()  # sigmoid(difference) is l, sigmoid(-difference) is 1-l
    return weight, torch.rand(num_rows, device=device).argsort()


def mix(parts: Sequence[Tensor], weight: Tensor, order: Tensor) -> Tensor:
    """Return weight * rows + (1 - weight) * pool[order], where each row has its own weight.

    parts            images or targets, e.g. the labelled ones and those of each view; their concatenation are the rows
    weight, order    drawn for the rows of the pool, i.e. of the first part of all processes, then of the second part of
                     all processes, and so on; with one process the rows are the pool
    """
    rows = torch.cat(list(parts))
    pool = rows
    if distributed.world_size() > 1:
        gathered = [distributed.gather(part) for part in parts]
        pool, sizes = torch.cat(gathered), [len(part) for part in gathered]
        weight, order = (
            torch.cat([distributed.own_rows(drawn) for drawn in of_pool.split(sizes)]) for of_pool in (weight, order)
        )
    return pool[order].lerp(rows, weight.view(-1, *[1] * (rows.ndim - 1)))
