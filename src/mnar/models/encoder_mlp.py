"""An encoder that can be trained on its own, and a multi-layer perceptron on what it encodes: VIME's network."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn

from mnar.models.classifier import Classifier


class EncoderMLP(Classifier):
    """features(x) = layers(encoder(x)); the encoder is as wide as the input, where nobody says otherwise."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        encoder_width: int | None = None,
        hidden: tuple[int, ...] = (100, 100),
    ) -> None:
        input_width = prod(input_shape)
        widths = (input_width if encoder_width is None else encoder_width, *hidden)
        if min(widths) < 1:
            raise ValueError(f"encoder_width and hidden are {widths[0]} and {hidden}; each width must be at least 1")
        super().__init__(widths[-1], num_classes)
        self.input_width, self.encoder_width = input_width, widths[0]
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(self.input_width, self.encoder_width), nn.ReLU())
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(self.encoder(x))
        return features


def with_encoder(model: nn.Module) -> EncoderMLP:
    """The model, if it is one that VIME can train."""
    if not isinstance(model, EncoderMLP):
        raise ValueError(
            f"VIME trains an encoder first, and {type(model).__name__} has none; choose --set model.name=encoder_mlp"
        )
    return model
