"""The interface of every network: features, a linear head on them, and logits = head(features)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, cast

from torch import Tensor, nn

from mnar.models.head import Head
from mnar.types import Samples


class Classifier(nn.Module, ABC):
    """A network whose last layer is linear. Learners that work on embeddings call `features` and `head` separately.

    Concrete classes are built as Model(input_shape, num_classes, *, options). `input_shape` is the shape of one sample.
    """

    # Whether `features` takes `Rows`, i.e. a batch of which only the first rows have a gradient. The option
    # learner.weak_gradient=false needs such a network.
    takes_rows: ClassVar[bool] = False

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.head = Head(num_features, num_classes)
        # Further heads on the features. A learner trains them, but they take no part in predictions.
        self.heads = nn.ModuleDict()

    @abstractmethod
    def features(self, x: Samples) -> Tensor:
        """Return the features [n, num_features] of the samples x [n, *input_shape].

        For `Rows`, the features of the trained rows come first, and those of the observed rows have no gradient.
        """

    def forward(self, x: Samples) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def with_heads(model: nn.Module, *names: str) -> Classifier:
    """Return the model. Raise an error if a learner has not added the heads `names` to it."""
    missing = [name for name in names if name not in getattr(model, "heads", ())]
    if missing:
        raise ValueError(f"the model has no head {missing[0]!r}; add it with model.heads.update(learner.heads(model))")
    return cast(Classifier, model)


def load_body(model: Classifier, weights: Mapping[str, Tensor], prefix: str = "") -> None:
    """Load the weights whose names begin with `prefix`, except for those of the heads, which stay as they are."""
    mine = model.state_dict()
    wanted = {name for name in mine if name.startswith(prefix) and not name.startswith(("head.", "heads."))}
    given = {name: tensor for name, tensor in weights.items() if name in wanted}
    if given.keys() != wanted or not wanted:
        what = prefix.rstrip(".") or "network"
        raise ValueError(f"the weights contain no {what} with the layers of this model")
    for name, tensor in given.items():
        if tensor.shape != mine[name].shape:
            shapes = f"{list(tensor.shape)}, and {list(mine[name].shape)} in this model"
            raise ValueError(f"the weights of {name} have the shape {shapes}")
    model.load_state_dict(mine | given)


def image_channels(input_shape: tuple[int, ...]) -> int:
    """Return the number of channels. Refuse an input shape that is not (channels, height, width)."""
    if len(input_shape) != 3:
        raise ValueError(
            f"a convolutional model needs images of shape (channels, height, width), "
            f"got {tuple(input_shape)}; use --set model.name=mlp for tables"
        )
    return input_shape[0]
