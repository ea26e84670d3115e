"""Both families of convolution kernels against plain PyTorch in float64: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.triton_kernels import DEVICE, ON_GPU, relative_error

pytest.importorskip("triton")
fused_conv = pytest.importorskip("mnar.models.fused_conv")

Case = tuple[int, int, int, int, int]  # images, input channels, height, width, output channels
CASES: list[Case] = [(3, 16, 8, 8, 32), (5, 32, 4, 16, 16), (4, 32, 6, 8, 32)]
SMALL = 2e-3 if ON_GPU else 1e-5  # a GPU multiplies float32 matrices in tf32


def images_of(n: int, channels: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(n, channels, height, width, device=DEVICE)
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def weight_of(num_out: int, num_in: int, dtype: torch.dtype) -> Tensor:
    weight = torch.randn(num_out, num_in, 3, 3, device=DEVICE) / (9 * num_in) ** 0.5
    return weight.to(dtype).contiguous(memory_format=torch.channels_last)


def assert_equal_to_float64(
    case: Case,
    dtype: torch.dtype,
    most: float,
    convolve: Callable[..., Tensor],
    weight_gradient: Callable[[Tensor, Tensor], Tensor],
) -> None:
    n, num_in, height, width, num_out = case
    x, grad = images_of(n, num_in, height, width, dtype), images_of(n, num_out, height, width, dtype)
    weight = weight_of(num_out, num_in, dtype)
    exact_x, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = F.conv2d(exact_x, exact_weight, padding=1)
    grad_x, grad_weight = torch.autograd.grad(y, (exact_x, exact_weight), grad.double())

    found = convolve(x, weight, transposed=False)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(found, y) < most
    assert relative_error(convolve(grad, weight, transposed=True), grad_x) < most
    found = weight_gradient(x, grad)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(found, grad_weight) < most


@pytest.mark.parametrize("images", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_slide_kernels_equal_float64_autograd(case: Case, images: int) -> None:
    torch.manual_seed(0)
    sizes = fused_conv.SlideSizes(images, num_warps=4, stages=2)
    assert_equal_to_float64(
        *(case, torch.float32, SMALL),
        lambda x, weight, *, transposed: fused_conv.slide_convolve(x, weight, transposed=transposed, sizes=sizes),
        lambda x, grad: fused_conv.slide_weight_gradient(x, grad, most_programs=3),  # several tiles each
    )


@pytest.mark.parametrize("case", [*CASES, (2, 16, 5, 7, 32)])
def test_the_patch_kernels_equal_float64_autograd(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_conv, "PATCH_WEIGHT_GRADIENT_PROGRAMS", {16: 3, 32: 3})  # several tiles each
    torch.manual_seed(1)
    assert_equal_to_float64(*(case, torch.float32, SMALL), fused_conv.patch_convolve, fused_conv.patch_weight_gradient)


def test_the_slide_kernels_round_only_the_result_in_half_precision() -> None:
    torch.manual_seed(2)
    # Triton's interpreter has no product of bfloat16 matrices, so this test takes float16.
    assert_equal_to_float64(
        *((3, 16, 8, 8, 16), torch.float16, 1e-3), fused_conv.slide_convolve, fused_conv.slide_weight_gradient
    )


@pytest.mark.parametrize(
    ("num_in", "width", "num_out", "slides"),
    [(16, 8, 32, True), (32, 32, 16, True), (3, 32, 16, False), (16, 12, 32, False), (16, 4, 32, False)],
)
def test_images_whose_width_is_a_power_of_two_go_to_the_slide_kernels(
    num_in: int, width: int, num_out: int, slides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for family in ("slide", "patch"):
        for name in ("convolve", "weight_gradient"):
            monkeypatch.setattr(fused_conv, f"{family}_{name}", lambda *_, f=family, **__: called.append(f))
    x, grad = images_of(1, num_in, 8, width, torch.float32), images_of(1, num_out, 8, width, torch.float32)
    operation = fused_conv.TritonConvolution(weight_of(num_out, num_in, torch.float32))
    operation.convolve(x)
    operation.input_gradient(x, grad)
    operation.weight_gradient(x, grad)
    assert called == ["slide" if slides else "patch"] * 3


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("case", [(960, 32, 32, 32, 32), (511, 32, 32, 32, 32), (960, 16, 32, 32, 32)])
@pytest.mark.parametrize("family", ["slide", "patch"])
def test_kernels_on_a_gpu_equal_float64_within_bfloat16_rounding(case: Case, family: str) -> None:
    torch.manual_seed(3)
    convolve, weight_gradient = (getattr(fused_conv, f"{family}_{name}") for name in ("convolve", "weight_gradient"))
    assert_equal_to_float64(case, torch.bfloat16, 5e-3, convolve, weight_gradient)
