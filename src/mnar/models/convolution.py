"""A 3x3 convolution that uses our own kernels where they are faster than those of cuDNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mnar.models.fusing import triton_can_take

# The numbers of channels for which our kernels are used. With more channels, cuDNN is as fast. With fewer than 16 input
# channels, the input must be the image itself, which needs no gradient.
FUSED_CHANNELS = (16, 32)


class Convolution3x3(nn.Conv2d):
    """A 3x3 convolution with padding 1 and without bias.

    In training on a GPU under autocast, with few channels and stride 1, the module uses our Triton kernels (see
    `fused_conv`). Set `fused` to False to use the kernels of PyTorch everywhere.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.fused = True

    def forward(self, x: Tensor) -> Tensor:
        if self._can_fuse(x):
            # This import is not at the top of the file, since only installations for a GPU have Triton.
            from mnar.models.fused_conv import convolve

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
