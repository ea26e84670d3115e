"""The Triton convolution against PyTorch's: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mnar.models.convolution import Convolution, _Convolve
from tests.support.triton_kernels import DEVICE, ON_GPU, relative_error

pytest.importorskip("triton")
fused_conv = pytest.importorskip("mnar.models.fused_conv")


def assert_equal_to_float64(shape: tuple[int, int, int, int], num_out: int, dtype: torch.dtype, most: float) -> None:
    """Output and both gradients; an image's own channels (3) get no gradient."""
    num_in = shape[1]
    x = torch.randn(shape, device=DEVICE).to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(num_out, num_in, 3, 3, device=DEVICE).to(dtype).float().requires_grad_()
    x.requires_grad_(num_in >= 16)
    exact_x, exact_weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()

    operation = fused_conv.TritonConvolution(weight.detach().to(dtype))
    y, exact_y = _Convolve.apply(x, None, weight, operation)[0], F.conv2d(exact_x, exact_weight, padding=1)
    grad = torch.randn(y.shape, device=DEVICE).to(dtype)
    y.backward(grad)
    exact_y.backward(grad.double())
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(y, exact_y) < most
    assert weight.grad is not None
    assert exact_weight.grad is not None
    assert relative_error(weight.grad, exact_weight.grad) < most
    if x.requires_grad:
        assert x.grad is not None
        assert exact_x.grad is not None
        assert relative_error(x.grad, exact_x.grad) < most


@pytest.mark.parametrize(("shape", "num_out"), [((2, 3, 9, 6), 16), ((3, 16, 8, 8), 32), ((2, 32, 7, 5), 32)])
def test_a_fused_convolution_equals_float64_autograd(
    shape: tuple[int, int, int, int], num_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = dict.fromkeys((3, 16, 32), 3)  # several tiles each
    monkeypatch.setattr(fused_conv, "PATCH_WEIGHT_GRADIENT_PROGRAMS", programs)
    torch.manual_seed(0)
    assert_equal_to_float64(shape, num_out, torch.float32, most=2e-3 if ON_GPU else 1e-5)  # a GPU's dot is tf32


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("shape", "num_out"), [((960, 3, 32, 32), 16), ((960, 16, 32, 32), 32), ((960, 32, 32, 32), 32)]
)
def test_a_fused_convolution_on_a_gpu_equals_float64_within_bfloat16_rounding(
    shape: tuple[int, int, int, int], num_out: int
) -> None:
    assert_equal_to_float64(shape, num_out, torch.bfloat16, most=5e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_the_module_takes_the_kernels_under_autocast_and_the_library_elsewhere() -> None:
    layer = Convolution(16, 32, 3).cuda()
    x = torch.randn(2, 16, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last)
    assert not layer._can_fuse(x)
    with torch.autocast("cuda", torch.bfloat16):
        assert layer._can_fuse(x)
        fused = layer(x)
        layer.fused = False
        plain = layer(x)
    assert fused.dtype == plain.dtype == torch.bfloat16
    assert relative_error(fused, plain) < 5e-3
