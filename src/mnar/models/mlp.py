"""A multi-layer perceptron, for tables and for quick checks."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn

from mnar.models.classifier import Classifier
from mnar.models.dropout import dropout_layers


class MLP(Classifier):
    """Dropout, where asked for, follows every hidden layer."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        hidden: tuple[int, ...] = (256, 256),
        dropout: float = 0.0,
    ) -> None:
        if dropout and not hidden:
            raise ValueError(
                f"dropout is {dropout}, but only hidden layers have it; choose hidden layers, such as (256,)"
            )
        widths = (prod(input_shape), *hidden)
        super().__init__(widths[-1], num_classes)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU(), *dropout_layers(dropout)]
        self.layers = nn.Sequential(*layers)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features
