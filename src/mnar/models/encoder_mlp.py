"""The network of VIME: an encoder, which can be trained separately, and a multi-layer perceptron on top of it."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn

from mnar.models.classifier import Classifier
from mnar.models.rows import joined, through
from mnar.option_values import LayerWidth, checked_options
from mnar.types import Samples


class EncoderMLP(Classifier):
    """A classifier with features(x) = layers(encoder(x)).

    encoder_width  number of outputs of the encoder; None: as many as the input has features
    hidden         widths of the hidden layers after the encoder
    """

    takes_rows = True

    @checked_options
    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        encoder_width: LayerWidth | None = None,
        hidden: tuple[LayerWidth, ...] = (100, 100),
    ) -> None:
        input_width = prod(input_shape)
        widths = (input_width if encoder_width is None else encoder_width, *hidden)
        super().__init__(widths[-1], num_classes)
        self.input_width, self.encoder_width = input_width, widths[0]
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(self.input_width, self.encoder_width), nn.ReLU())
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def features(self, x: Samples) -> Tensor:
        return joined(through(self.layers, through(self.encoder, x)))


def with_encoder(model: nn.Module) -> EncoderMLP:
    """Return the model. Raise an error if it has no encoder, so that VIME cannot train it."""
    if not isinstance(model, EncoderMLP):
        raise ValueError(
            f"VIME first trains an encoder, but {type(model).__name__} has none; choose --set model.name=encoder_mlp"
        )
    return model
