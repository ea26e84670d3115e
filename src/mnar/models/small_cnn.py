"""Three small convolutions, for 8x8 digits on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from mnar.models.classifier import Classifier, image_channels


class SmallCNN(Classifier):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, width: int = 16) -> None:
        super().__init__(4 * width, num_classes)
        self.layers = nn.Sequential(
            *_convolution(image_channels(input_shape), width, stride=1),
            *_convolution(width, 2 * width, stride=2),
            *_convolution(2 * width, 4 * width, stride=1),
        )

    def features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps.mean((2, 3))


def _convolution(in_channels: int, out_channels: int, stride: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)
