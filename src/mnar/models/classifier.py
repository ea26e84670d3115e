"""What every network offers: features, a linear head on them, and logits = head(features)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from torch import Tensor, nn


class Classifier(nn.Module, ABC):
    """A network whose last layer is linear; learners that work on embeddings call `features` and `head`.

    Final classes are built as Model(input_shape, num_classes, *, options); input_shape is one sample's.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.head = nn.Linear(num_features, num_classes)
        self.heads = nn.ModuleDict()  # further ones on the features, that a learner trains and nobody predicts with

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """[n, *input_shape] -> [n, num_features]"""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def with_heads(model: nn.Module, *names: str) -> Classifier:
    """The model, once it is sure that a learner has put its heads there."""
    missing = [name for name in names if name not in getattr(model, "heads", ())]
    if missing:
        raise ValueError(f"the model has no head {missing[0]!r}; add it with model.heads.update(learner.heads(model))")
    return cast(Classifier, model)


def image_channels(input_shape: tuple[int, ...]) -> int:
    if len(input_shape) != 3:
        raise ValueError(
            f"a convolutional model needs images of shape (channels, height, width), "
            f"got {tuple(input_shape)}; use --set model.name=mlp for tables"
        )
    return input_shape[0]
