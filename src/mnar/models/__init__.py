"""The networks. Each is built as Model(input_shape, num_classes, *, options) and maps a batch to logits."""

from collections.abc import Callable

from mnar.models.backbone import Backbone, NetworkOrFactory
from mnar.models.classifier import Classifier
from mnar.models.encoder_mlp import EncoderMLP
from mnar.models.mlp import MLP
from mnar.models.resnet import ResNet18
from mnar.models.small_cnn import SmallCNN
from mnar.models.wide_resnet import WideResNet

MODELS: dict[str, Callable[..., Classifier]] = {
    "wide_resnet": WideResNet,
    "resnet18": ResNet18,
    "mlp": MLP,
    "encoder_mlp": EncoderMLP,
    "small_cnn": SmallCNN,
}

__all__ = [
    "MLP",
    "MODELS",
    "Backbone",
    "Classifier",
    "EncoderMLP",
    "NetworkOrFactory",
    "ResNet18",
    "SmallCNN",
    "WideResNet",
]
