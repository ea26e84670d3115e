"""A multi-layer perceptron, for tables and for quick checks."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn

from mnar.models.classifier import Classifier
from mnar.models.dropout import dropout_layers
from mnar.models.rows import joined, through
from mnar.option_values import LayerWidth, ShareBelowOne, checked_options
from mnar.types import Samples


class MLP(Classifier):
    """A multi-layer perceptron with ReLU.

    hidden   widths of the hidden layers
    dropout  share of values that dropout sets to 0 after every hidden layer; 0 means no dropout layers
    """

    takes_rows = True

    @checked_options
    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        hidden: tuple[LayerWidth, ...] = (256, 256),
        dropout: ShareBelowOne = 0.0,
    ) -> None:
        if dropout and not hidden:
            raise ValueError(
                f"dropout is {dropout}, but only hidden layers have dropout and there are none; "
                "choose hidden layers, e.g. --set model.hidden=[256]"
            )
        widths = (prod(input_shape), *hidden)
        super().__init__(widths[-1], num_classes)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU(), *dropout_layers(dropout)]
        self.layers = nn.Sequential(*layers)

    def features(self, x: Samples) -> Tensor:
        return joined(through(self.layers, x))
