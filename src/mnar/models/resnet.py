"""ResNet-18 (He et al., Deep residual learning for image recognition, 2016), in torchvision's form."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mnar.models.classifier import Classifier, image_channels
from mnar.models.dropout import dropout_layers


class ResNet18(Classifier):
    """ResNet-18 for images of about 64x64 pixels or more. The first layers already shrink each side to a quarter.

    dropout  share of the features that dropout sets to 0; 0 means no dropout layer
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout: float = 0.0) -> None:
        super().__init__(512, num_classes)
        self.stem = nn.Sequential(
            nn.Conv2d(image_channels(input_shape), 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
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

    def features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.blocks(self.stem(x))
        features: Tensor = self.dropout(maps.mean((2, 3)))
        return features


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut. The shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convolutions(x) + self.shortcut(x))
