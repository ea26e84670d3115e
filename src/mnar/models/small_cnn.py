"""A small convolutional network for a CPU, made for 8x8 images of digits and for small photographs."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from mnar.models.classifier import Classifier, image_channels
from mnar.models.dropout import dropout_layers
from mnar.models.rows import joined, through
from mnar.option_values import Range, ShareBelowOne, checked_options
from mnar.types import Samples

CHANNELS_PER_GROUP = 8  # of group norm


class SmallCNN(Classifier):
    """A network with a few convolutions. All but the last convolution are followed by 2x2 max-pooling.

    The features are all positions of the last feature maps, because the position of a stroke matters for recognising a
    digit. Images of more than 16x16 pixels would give thousands of features, and their head would need a much smaller
    learning rate than the convolutions. Such images get one more stage, and their last feature maps are averaged over
    regions, so that at most `positions` x `positions` positions are left.

    width      number of channels of the first convolution; the second has 2 times and all others 4 times as many
    dropout    share of values that dropout sets to 0 after every activation; 0 means no dropout layers
    norm       "batch" or "group"; group norm works on each image alone, so it does not depend on the batch
    stages     number of convolutions before the last one; 0 chooses by the size of the image
    positions  largest side of the feature maps that the head reads; 0 means that feature maps are not averaged
    """

    takes_rows = True

    @checked_options
    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        width: Annotated[int, Range(1, 1024)] = 16,
        dropout: ShareBelowOne = 0.0,
        norm: Literal["batch", "group"] = "batch",
        stages: Annotated[int, Range(0, 16)] = 0,
        positions: Annotated[int, Range(0, 1024)] = 4,
    ) -> None:
        in_channels = image_channels(input_shape)
        stages = stages or _stages_for(input_shape)
        sides = [side >> stages for side in input_shape[1:]]
        if 0 in sides:
            shape, least = tuple(input_shape), 2**stages
            raise ValueError(
                f"small_cnn needs images of {least}x{least} pixels or more, got {shape}; use --set model.name=mlp"
            )
        pooled = [min(side, positions) if positions else side for side in sides]
        super().__init__(4 * width * pooled[0] * pooled[1], num_classes)
        layers: list[nn.Module] = []
        for stage in range(stages):
            channels = width * min(2**stage, 4)
            # Pooling before the norm leaves a quarter of the pixels to normalise.
            layers += [_convolution(in_channels, channels), nn.MaxPool2d(2), *_norm_relu(channels, norm, dropout)]
            in_channels = channels
        layers += [_convolution(in_channels, 4 * width), *_norm_relu(4 * width, norm, dropout)]
        if pooled != sides:
            layers.append(nn.AdaptiveAvgPool2d((pooled[0], pooled[1])))
        self.layers = nn.Sequential(*layers)
        # This halves the time on a CPU: 7 ms instead of 15 ms for a forward and backward pass of 480 digits.
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def features(self, x: Samples) -> Tensor:
        maps = joined(through(self.layers, x))
        return maps.permute(0, 2, 3, 1).flatten(1)  # This is the order in memory, so the result is a view.


def _stages_for(input_shape: tuple[int, ...]) -> int:
    """Two stages for images of up to 16x16 pixels, and three for larger images."""
    return 2 if min(input_shape[1:]) <= 16 else 3


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)


def _norm_relu(channels: int, norm: str, dropout: float) -> tuple[nn.Module, ...]:
    if norm == "batch":
        layer: nn.Module = nn.BatchNorm2d(channels)
    else:
        layer = nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)
    return layer, nn.ReLU(inplace=True), *dropout_layers(dropout)
