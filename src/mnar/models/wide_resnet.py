"""Wide residual networks (Zagoruyko and Komodakis, 2016) as semi-supervised learning uses them, e.g. WRN-28-2.

The blocks are pre-activation blocks with LeakyReLU and convolutions without bias. There is no dropout by default. If
dropout is set, it comes before the second convolution of a block, as in the paper. In every block that changes the
width, the shortcut takes the activated input, as in the published PRG code. FixMatch's TensorFlow code does so in the
first stage only.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.classifier import Classifier, image_channels
from mnar.models.convolution import Convolution
from mnar.models.dropout import dropout_layers
from mnar.models.rows import each, joined, through
from mnar.option_values import Range, Share, ShareBelowOne, checked_options
from mnar.types import Samples


class WideResNet(Classifier):
    """WRN-depth-width.

    depth     number of layers, 6n + 4
    width     factor on the number of channels
    momentum  weight of the current batch in the running statistics of batch norm
    slope     slope of LeakyReLU for negative values
    dropout   share of values that dropout sets to 0 in each block; 0 means no dropout layers
    """

    takes_rows = True

    @checked_options
    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        depth: Annotated[int, Range(10, 1000)] = 28,
        width: Annotated[int, Range(1, 64)] = 2,
        momentum: Share = 0.001,
        slope: Share = 0.1,
        dropout: ShareBelowOne = 0.0,
    ) -> None:
        blocks_per_stage, rest = divmod(depth - 4, 6)
        if blocks_per_stage < 1 or rest:
            raise ValueError(f"depth is {depth}; it must be 6n + 4 with n >= 1. Choose e.g. 10, 16, 22, 28 or 40")
        super().__init__(64 * width, num_classes)
        nn.init.zeros_(self.head.bias)

        channels = 16
        self.stem = _convolution(image_channels(input_shape), channels, 3, stride=1)
        self.blocks = nn.ModuleList()
        for out_channels, first_stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for block in range(blocks_per_stage):
                stride = first_stride if block == 0 else 1
                self.blocks.append(PreActivationBlock(channels, out_channels, stride, momentum, slope, dropout))
                channels = out_channels
        self.norm = BatchNormLeakyReLU(channels, slope=slope, momentum=momentum)

    def features(self, x: Samples) -> Tensor:
        residual: Samples = self.stem(x)
        skip: Samples | None = None
        for block in self.blocks:
            residual, skip = block(residual, skip)
        _, activated = self.norm.add(residual, skip)
        return joined(each(lambda maps: maps.mean((2, 3)), activated))


class PreActivationBlock(nn.Module):
    """A residual block that takes and returns the residual and the skip path separately.

    The next norm adds the two in a pass over memory that it makes in any case.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, momentum: float, slope: float, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = BatchNormLeakyReLU(in_channels, slope=slope, momentum=momentum)
        self.conv1 = _convolution(in_channels, out_channels, 3, stride)
        self.norm2 = BatchNormLeakyReLU(out_channels, slope=slope, momentum=momentum)
        self.dropout = nn.Sequential(*dropout_layers(dropout))
        self.conv2 = _convolution(out_channels, out_channels, 3, stride=1)
        same_shape = in_channels == out_channels and stride == 1
        self.shortcut = None if same_shape else _convolution(in_channels, out_channels, 1, stride)

    def forward(self, residual: Samples, skip: Samples | None) -> tuple[Samples, Samples]:
        total, activated = self.norm1.add(residual, skip)
        residual = self.conv2(through(self.dropout, self.norm2(self.conv1(activated))))
        skip = total if self.shortcut is None else self.shortcut(activated)
        return residual, skip


def _convolution(in_channels: int, out_channels: int, size: int, stride: int) -> Convolution:
    convolution = Convolution(in_channels, out_channels, size, stride)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")  # N(0, sqrt(2 / (k k out)))
    return convolution
