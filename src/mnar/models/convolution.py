"""A convolution that takes `Rows`, and uses our own kernels where they are faster than those of cuDNN."""

# mypy: allow-untyped-calls
# (torch.autograd.Function.apply has no types)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mnar.models.fusing import triton_can_take
from mnar.models.rows import each, in_one_block
from mnar.models.side_stream import aside
from mnar.types import Rows, Samples

if TYPE_CHECKING:
    from mnar.models.fused_conv import TritonConvolution

# The numbers of channels for which our kernels are used. With more channels, cuDNN is as fast. With fewer than 16 input
# channels, the input must be the image itself, which needs no gradient.
FUSED_CHANNELS = (16, 32)


class Convolution(nn.Conv2d):
    """A convolution with an odd size, without bias. Without stride, the result is as large as the input.

    In training on a GPU under autocast, the module can compute the gradient of the weight on a second stream, and
    uses our Triton kernels for 3x3 convolutions with few channels and stride 1 (see `fused_conv`). Set `fused` to False
    to use the operations of PyTorch everywhere. Within `weights_cast`, the module does not cast its weight itself.
    """

    takes_rows = True

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, size, stride, padding=size // 2, bias=False)
        self.fused = True
        self.cast_weight: Tensor | None = None  # the weight in the precision of autocast, within `weights_cast` only

    def forward(self, x: Samples) -> Samples:  # type: ignore[override]
        if isinstance(x, Rows):
            if not self._can_fuse(x.trained):
                return each(super().forward, x)
            return Rows(*_Convolve.apply(*x, self.weight, self._operation(x.trained)))
        if not self._can_fuse(x):
            return super().forward(x)
        y: Tensor = _Convolve.apply(x, None, self.weight, self._operation(x))[0]
        return y

    @property
    def casts_weight(self) -> bool:
        """Whether the module casts its weight itself, instead of letting autocast do so."""
        return self.fused and self.training and self.weight.is_cuda and self.weight.dtype == torch.float32

    def _can_fuse(self, x: Tensor) -> bool:
        return self.casts_weight and triton_can_take(x) and torch.is_autocast_enabled("cuda")

    def _operation(self, x: Tensor) -> LibraryConvolution | TritonConvolution:
        """The convolution and its gradients, by our kernels or by those of PyTorch."""
        weight = self.cast_weight
        if weight is None:
            weight = self.weight.detach().to(torch.get_autocast_dtype("cuda"))
        has_kernel = (
            self.kernel_size == (3, 3)
            and self.stride == (1, 1)
            and self.out_channels in FUSED_CHANNELS
            and (self.in_channels in FUSED_CHANNELS or (self.in_channels < 16 and not x.requires_grad))
            and x[:, 0].numel() * max(self.in_channels, self.out_channels) < 2**30  # `Rows` may double it
        )
        if has_kernel:
            # This import is not at the top of the file, since only installations for a GPU have Triton.
            from mnar.models.fused_conv import TritonConvolution

            return TritonConvolution(weight)
        stride, padding = cast(tuple[int, int], self.stride), cast(tuple[int, int], self.padding)
        return LibraryConvolution(weight, stride, padding)


@contextmanager
def weights_cast(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Cast the weights of all convolutions of the model at once, for a forward pass under autocast with this type.

    One kernel casts all weights. If each convolution casts its own weight, WRN-28-2 needs 28 kernels. At the end, the
    convolutions forget the casts, which the next step of the optimiser makes obsolete. The backward pass keeps its own
    reference to them.
    """
    convolutions = [module for module in model.modules() if isinstance(module, Convolution) and module.casts_weight]
    weights = [convolution.weight.detach() for convolution in convolutions]
    casts = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    if weights:
        torch._foreach_copy_(casts, weights)
    for convolution, cast_weight in zip(convolutions, casts, strict=True):
        convolution.cast_weight = cast_weight
    try:
        yield
    finally:
        for convolution in convolutions:
            convolution.cast_weight = None


class LibraryConvolution:
    """The convolution of PyTorch with a weight, and its gradients, in the precision of the weight."""

    def __init__(self, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> None:
        self.weight, self.stride, self.padding = weight, stride, padding

    def convolve(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self.weight, None, self.stride, self.padding)

    def input_gradient(self, x: Tensor, grad_y: Tensor) -> Tensor:
        return self._gradients(x, grad_y, (True, False, False))[0]

    def weight_gradient(self, x: Tensor, grad_y: Tensor) -> Tensor:
        return self._gradients(x, grad_y, (False, True, False))[1].float()

    def _gradients(self, x: Tensor, grad_y: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        options = (None, self.stride, self.padding, (1, 1), False, (0, 0), 1)
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(grad_y, x, self.weight, *options, wanted)
        return gradients


class _Convolve(torch.autograd.Function):
    """Convolve all rows in one kernel. The backward pass computes the trained rows only."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        observed: Tensor | None,
        weight: Tensor,
        operation: LibraryConvolution | TritonConvolution,
    ) -> tuple[Tensor, Tensor | None]:
        num_trained = len(x)
        ctx.operation, ctx.weight, ctx.x_dtype = operation, weight, x.dtype
        ctx.set_materialize_grads(False)  # the observed rows have no gradient, not even zeros
        if observed is not None:
            x = in_one_block(x, observed)
        x = x.to(operation.weight.dtype)
        ctx.save_for_backward(x[:num_trained])
        y = operation.convolve(x)
        if observed is None:
            return y, None
        observed_y = y[num_trained:]
        ctx.mark_non_differentiable(observed_y)
        return y[:num_trained], observed_y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor | None, _: None) -> tuple[Any, ...]:
        if grad_y is None:
            return None, None, None, None
        (x,) = ctx.saved_tensors
        grad_y = grad_y.contiguous(memory_format=torch.channels_last)
        grad_weight = None
        if ctx.needs_input_grad[2]:
            grad_weight = aside(ctx.operation.weight_gradient, x, grad_y, weight=ctx.weight)
        grad_x = ctx.operation.input_gradient(x, grad_y).to(ctx.x_dtype) if ctx.needs_input_grad[0] else None
        return grad_x, None, grad_weight, None
