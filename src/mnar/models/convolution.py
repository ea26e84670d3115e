"""A 3x3 convolution that takes our own kernels where they are faster than the library's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mnar.models.fusing import triton_can_take

FUSED_CHANNELS = (16, 32)  # more, and cuDNN is as fast; an input of fewer must be the image itself


class Convolution3x3(nn.Conv2d):
    """Padding 1, no bias. In training on a GPU, at few channels and stride 1, in Triton; see `fused_conv`.

    Set `fused` to False for the library's kernels everywhere.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.fused = True

    def forward(self, x: Tensor) -> Tensor:
        if self._can_fuse(x):
            from mnar.models.fused_conv import convolve  # not above: only GPU installs have Triton

            return convolve(x.to(torch.get_autocast_dtype("cuda")), self.weight)
        return super().forward(x)

    def _can_fuse(self, x: Tensor) -> bool:
        return (
            self.fused
            and self.training
            and triton_can_take(x)
            and torch.is_autocast_enabled("cuda")
            and self.stride == (1, 1)
            and self.out_channels in FUSED_CHANNELS
            and (self.in_channels in FUSED_CHANNELS or (self.in_channels < 16 and not x.requires_grad))
            and self.weight.dtype == torch.float32
            and x[:, 0].numel() * max(self.in_channels, self.out_channels) < 2**31
        )
