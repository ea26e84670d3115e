"""Adaptive average pooling as two matrix products, because ONNX has no such operation for sides that do not divide."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class RegionMeans(nn.Module):
    """Means over a grid of regions. The result equals that of `nn.AdaptiveAvgPool2d`, for images of one size."""

    down: Tensor  # [regions, height]
    right: Tensor  # [regions, width]

    def __init__(self, size: tuple[int, int], regions: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("down", _averaging(size[0], regions[0]))
        self.register_buffer("right", _averaging(size[1], regions[1]))

    def forward(self, maps: Tensor) -> Tensor:
        """Return the means [n, channels, *regions] of maps [n, channels, *size]."""
        return self.down @ maps @ self.right.T


def without_adaptive_pooling(network: nn.Module, sample: Tensor) -> nn.Module:
    """Return a copy of the network in which `RegionMeans` replaces every adaptive pooling layer.

    `sample` is a batch of inputs; a trial with the sample shows the sizes of the maps that the layers get.
    """
    network = copy.deepcopy(network)
    sizes: dict[str, tuple[int, int]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda layer, inputs, output, name=name: sizes.__setitem__(name, tuple(inputs[0].shape[2:]))
        )
        for name, layer in network.named_modules()
        if isinstance(layer, nn.AdaptiveAvgPool2d)
    ]
    with torch.no_grad():
        network(sample)
    for hook in hooks:
        hook.remove()
    for name, size in sizes.items():
        layer = network.get_submodule(name)
        assert isinstance(layer, nn.AdaptiveAvgPool2d)
        height, width = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size,) * 2
        regions = (size[0] if height is None else height, size[1] if width is None else width)
        network.set_submodule(name, RegionMeans(size, regions))
    return network


def _averaging(side: int, regions: int) -> Tensor:
    """Return the matrix [regions, side] that averages neighbouring values as torch's adaptive pooling does."""
    averaging = torch.zeros(regions, side)
    for region in range(regions):
        first, end = region * side // regions, -(-(region + 1) * side // regions)
        averaging[region, first:end] = 1 / (end - first)
    return averaging
