"""A classifier on top of the user's own network: the output of that network are the features."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mnar.models.classifier import Classifier
from mnar.types import Samples

# Either a network, of which a copy is trained, or a function that returns a fresh network.
NetworkOrFactory = nn.Module | Callable[[], nn.Module]


class Backbone(Classifier):
    """Flatten the output of the user's network, which may have any shape, and put a linear head on top."""

    def __init__(self, network: NetworkOrFactory, input_shape: tuple[int, ...], num_classes: int) -> None:
        made = copy.deepcopy(network) if isinstance(network, nn.Module) else network()
        super().__init__(_num_features(made, input_shape), num_classes)
        self.network = made

    def features(self, x: Samples) -> Tensor:
        features: Tensor = self.network(x).flatten(1)
        return features


@torch.no_grad()
def _num_features(network: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Find the number of features by a trial with two blank samples. The trial uses a copy of the network."""
    if not isinstance(network, nn.Module):
        raise ValueError(f"the backbone is {type(network).__name__}; give an nn.Module, or a function that returns one")
    trial = copy.deepcopy(network).eval()
    try:
        output = trial(torch.zeros(2, *input_shape))
    except Exception as error:
        raise ValueError(f"the backbone cannot take samples of shape {tuple(input_shape)}: {error}") from error
    if not isinstance(output, Tensor) or len(output) != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"of two samples the backbone makes {shape}; it must give one row of features for each sample")
    return output.flatten(1).shape[1]
