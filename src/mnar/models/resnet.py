"""ResNet-18 (He et al., Deep residual learning for image recognition, 2016), in torchvision's form."""

from __future__ import annotations

from torch import Tensor, nn

from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.classifier import Classifier, image_channels
from mnar.models.convolution import Convolution
from mnar.models.dropout import dropout_layers
from mnar.models.rows import each, joined, relu_of_sum, through
from mnar.option_values import ShareBelowOne, checked_options
from mnar.types import Samples


class ResNet18(Classifier):
    """ResNet-18 for images of about 64x64 pixels or more. The first layers already shrink each side to a quarter.

    dropout  share of the features that dropout sets to 0; 0 means no dropout layer
    """

    takes_rows = True

    @checked_options
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout: ShareBelowOne = 0.0) -> None:
        super().__init__(512, num_classes)
        self.stem = nn.Sequential(
            Convolution(image_channels(input_shape), 64, 7, stride=2),
            _norm_relu(64),
            nn.Identity(),  # the layers keep the numbers of torchvision's weights
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.blocks = nn.Sequential(
            *(ResidualBlock(64, 64, 1), ResidualBlock(64, 64, 1)),
            *(ResidualBlock(64, 128, 2), ResidualBlock(128, 128, 1)),
            *(ResidualBlock(128, 256, 2), ResidualBlock(256, 256, 1)),
            *(ResidualBlock(256, 512, 2), ResidualBlock(512, 512, 1)),
        )
        self.dropout = nn.Sequential(*dropout_layers(dropout))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Samples) -> Tensor:
        maps = through(self.stem, x)
        for block in self.blocks:
            maps = block(maps)
        return joined(through(self.dropout, each(lambda maps: maps.mean((2, 3)), maps)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut. The shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            Convolution(in_channels, out_channels, 3, stride),
            _norm_relu(out_channels),
            nn.Identity(),
            Convolution(out_channels, out_channels, 3),
            _norm(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(Convolution(in_channels, out_channels, 1, stride), _norm(out_channels))

    def forward(self, x: Samples) -> Samples:
        return relu_of_sum(through(self.convolutions, x), through(self.shortcut, x))


def _norm_relu(channels: int) -> BatchNormLeakyReLU:
    return BatchNormLeakyReLU(channels, slope=0.0, momentum=0.1)


def _norm(channels: int) -> BatchNormLeakyReLU:
    """Batch norm alone: LeakyReLU with slope 1 changes nothing."""
    return BatchNormLeakyReLU(channels, slope=1.0, momentum=0.1)
