"""Put a class mix into probabilities, as torch modules. Both modules take and return float64 [n, k]."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mnar.own_data.confidence import NetworkCalibration
from mnar.own_data.inspection.calibration import SMOOTHING
from mnar.own_data.portfolio.member import Floats
from mnar.trained.export.member_modules import doubles, normalized


class WithShares(nn.Module):
    """Bayes' rule for balanced probabilities."""

    shares: Tensor  # [k]

    def __init__(self, shares: Floats) -> None:
        super().__init__()
        self.register_buffer("shares", doubles(shares))

    def forward(self, probs: Tensor) -> Tensor:
        return normalized(probs * self.shares)


class CalibratedWithShares(nn.Module):
    """Calibrates the softmax of a network and puts a class mix in, as `NetworkCalibration` does."""

    seen: Tensor  # [k] 1 for a class with held-out labels, 0 for the others
    bias: Tensor  # [k]
    ratio: Tensor  # [k] shares of the class mix, divided by the shares of the held-out labels

    def __init__(self, calibration: NetworkCalibration, shares: Floats) -> None:
        super().__init__()
        seen = calibration.seen
        bias, ratio = np.full(len(seen), -np.inf), np.zeros(len(seen))
        bias[seen], ratio[seen] = calibration.calibration.bias, shares[seen] / calibration.mix
        self.scale, self.num_seen = float(calibration.calibration.scale), int(seen.sum())
        self.register_buffer("seen", doubles(seen))
        self.register_buffer("bias", doubles(bias))
        self.register_buffer("ratio", doubles(ratio))

    def forward(self, probs: Tensor) -> Tensor:
        logs = torch.log((1 - SMOOTHING) * probs + SMOOTHING / self.num_seen)
        calibrated = (self.scale * logs + self.bias).softmax(1)
        in_mix = normalized_among(calibrated * self.ratio, self.seen)
        return probs * (1 - self.seen) + in_mix * (probs * self.seen).sum(1, keepdim=True)


def normalized_among(weights: Tensor, is_possible: Tensor) -> Tensor:
    """Return rows that sum to 1; a row of zeros becomes uniform over the possible classes."""
    sums = weights.sum(1, keepdim=True)
    uniform = (is_possible / is_possible.sum()).expand_as(weights)
    return torch.where(sums > 0, weights / torch.where(sums > 0, sums, torch.ones_like(sums)), uniform)
