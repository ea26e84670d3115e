"""A trained network with the normalisation of its input, as one torch module."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mnar.config import RunConfig
from mnar.run.assemble import make_augment, make_model
from mnar.trained.export.region_means import without_adaptive_pooling
from mnar.types import DataSet


class NormalizedNetwork(nn.Module):
    """A network on samples as they are stored: images as uint8, features as float32. It returns the softmax [n, k]."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Tensor, std: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = network, dtype
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, samples: Tensor) -> Tensor:
        # The normalisation is in float32 even if the network is not, as in training.
        normalised = (samples.float() - self.mean) / self.std
        logits: Tensor = self.network(normalised.to(self.dtype))
        return logits.double().softmax(1)


def network_module(
    config: RunConfig, data: DataSet, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> NormalizedNetwork:
    """Build the network that the configuration names, on the CPU. `data` needs no samples, only shapes and moments."""
    with torch.random.fork_rng(devices=[]):  # building a network draws random weights
        network = make_model(config, data)
    network.load_state_dict(dict(weights))
    network.eval().requires_grad_(False)
    augment = make_augment(config, data)
    blank = torch.zeros(2, *data.train_x.shape[1:])
    exportable = without_adaptive_pooling(network, blank).to(dtype)
    assert isinstance(augment.mean, Tensor)
    assert isinstance(augment.std, Tensor)
    return NormalizedNetwork(exportable, augment.mean.clone(), augment.std.clone(), dtype)
