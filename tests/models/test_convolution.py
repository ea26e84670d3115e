"""The module around the fused convolution, where there is no GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mnar.models.convolution import Convolution


def test_the_module_without_a_gpu_is_an_ordinary_convolution() -> None:
    layer = Convolution(3, 16, 3, stride=2)
    x = torch.randn(2, 3, 9, 9)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, stride=2, padding=1))
