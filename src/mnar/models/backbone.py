"""Somebody's own network: whatever comes out of it are the features of a classifier."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mnar.models.classifier import Classifier

# A network, of which a copy is trained, or what makes a fresh one.
Network = nn.Module | Callable[[], nn.Module]


class Backbone(Classifier):
    """Its output, of any shape, is flattened, and the linear head comes on top."""

    def __init__(self, network: Network, input_shape: tuple[int, ...], num_classes: int) -> None:
        made = copy.deepcopy(network) if isinstance(network, nn.Module) else network()
        super().__init__(_num_features(made, input_shape), num_classes)
        self.network = made

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(x).flatten(1)
        return features


@torch.no_grad()
def _num_features(network: nn.Module, input_shape: tuple[int, ...]) -> int:
    """By trying it on two blank samples; it stays as it was."""
    if not isinstance(network, nn.Module):
        raise ValueError(f"the backbone is {type(network).__name__}; give an nn.Module, or a function that makes one")
    trial = copy.deepcopy(network).eval()
    try:
        output = trial(torch.zeros(2, *input_shape))
    except Exception as error:
        raise ValueError(f"the backbone cannot take samples of shape {tuple(input_shape)}: {error}") from error
    if not isinstance(output, Tensor) or len(output) != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"of two samples the backbone makes {shape}; it must give one row of features for each")
    return output.flatten(1).shape[1]
