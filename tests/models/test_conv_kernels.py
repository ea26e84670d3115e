"""The sliding convolution kernels against plain PyTorch in float64: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined, so before the imports below
pytest.importorskip("triton")
fused_conv = pytest.importorskip("mnar.models.fused_conv")
norm_kernels = pytest.importorskip("mnar.models.norm_kernels")

SMALL = 2e-3 if ON_GPU else 1e-5  # a GPU multiplies float32 matrices in tf32
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
# images, input channels, height, width, output channels
CASES = [(3, 16, 8, 8, 32), (5, 32, 4, 16, 16), (4, 32, 6, 8, 32)]
# An image has a mean far from zero in some channels, so that inexact moments would show.
OFFSET = 30.0


def sizes_of(group: int, bands: int = 1, programs: int = 3, images: int = 4) -> object:
    return fused_conv.SlideSizes(images, group, num_warps=4, stages=2, bands=bands, programs=programs)


def images_of(n: int, channels: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(n, channels, height, width, device=DEVICE)
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def weight_of(num_out: int, num_in: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a weight that the type can represent. Its outputs have a variance near 1."""
    return (torch.randn(num_out, num_in, 3, 3, device=DEVICE) / (9 * num_in) ** 0.5).to(dtype).float()


def relative_error(value: Tensor, true: Tensor) -> float:
    assert not value.isnan().any()
    return ((value.double() - true.double()).norm() / true.double().norm()).item()


def float64_gradients(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, input gradient and weight gradient of PyTorch's convolution."""
    exact_x, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = F.conv2d(exact_x, exact_weight, padding=1)
    grad_x, grad_weight = torch.autograd.grad(y, (exact_x, exact_weight), grad.double())
    return y.detach(), grad_x, grad_weight


def assert_convolution_equals_float64(
    case: tuple[int, int, int, int, int], sizes: object, dtype: torch.dtype, most: float
) -> None:
    n, num_in, height, width, num_out = case
    x, grad = images_of(n, num_in, height, width, dtype), images_of(n, num_out, height, width, dtype)
    weight = weight_of(num_out, num_in, dtype)
    y, grad_x, grad_weight = float64_gradients(x, weight, grad)
    found = fused_conv.slide(x, weight.permute(2, 3, 1, 0), reverse=False, sizes=sizes)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(found, y) < most
    assert relative_error(fused_conv.slide(grad, weight.permute(2, 3, 0, 1), reverse=True, sizes=sizes), grad_x) < most
    assert relative_error(fused_conv.slide_weight_gradient(x, grad, sizes=sizes), grad_weight) < most


def combined_moments(moments: object) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance per channel from combine_moments."""
    channels = moments.partial.shape[1]  # type: ignore[attr-defined]
    mean, rstd, running_mean, running_var = torch.zeros(4, channels, device=DEVICE)
    tracked = torch.zeros((), dtype=torch.long, device=DEVICE)
    norm_kernels.combine_moments[(channels,)](
        *(moments.partial, mean, rstd, running_mean, running_var, tracked, 0.1, 1e-5),  # type: ignore[attr-defined]
        **moments.combine_sizes,  # type: ignore[attr-defined]
    )
    return mean, rstd.double() ** -2 - 1e-5


def assert_moments_equal_float64(
    case: tuple[int, int, int, int, int], sizes: object, dtype: torch.dtype, most: float, has_skip: bool
) -> None:
    n, num_in, height, width, num_out = case
    x, skip = images_of(n, num_in, height, width, dtype), None
    weight = weight_of(num_out, num_in, dtype)
    true = F.conv2d(x.double(), weight.double(), padding=1)
    if has_skip:
        offset = OFFSET * torch.arange(num_out, device=DEVICE)[:, None, None] / num_out
        skip = (images_of(n, num_out, height, width) + offset).to(dtype).contiguous(memory_format=torch.channels_last)
        true = true + skip.double()
    total, moments = fused_conv.slide_with_moments(x, weight.permute(2, 3, 1, 0), skip, sizes=sizes)
    assert relative_error(total, true) < most
    mean, variance = combined_moments(moments)
    stored = total.double()  # the moments are those of the rounded values
    assert (mean - stored.mean((0, 2, 3))).abs().max() < 1e-5 * OFFSET
    torch.testing.assert_close(variance, stored.var((0, 2, 3), correction=0), rtol=1e-4, atol=0)


def assert_gradient_sums_equal_float64(
    case: tuple[int, int, int, int, int], sizes: object, dtype: torch.dtype, most: float
) -> None:
    """The norm's input has two images more than the gradient, as in a batch of which some rows need no gradient."""
    n, num_in, height, width, num_out = case
    total = images_of(n + 2, num_in, height, width, dtype)
    grad_y, weight = images_of(n, num_out, height, width, dtype), weight_of(num_out, num_in, dtype)
    mean, bias = 0.5 * torch.randn(2, num_in, device=DEVICE)
    rstd, norm_weight = 0.5 + torch.rand(2, num_in, device=DEVICE)
    grad_x, sums = fused_conv.slide_with_gradient_sums(
        *(grad_y, weight.permute(2, 3, 0, 1), total, mean, rstd, norm_weight, bias, 0.1), sizes=sizes
    )
    _, true_grad_x, _ = float64_gradients(total[:n], weight, grad_y)
    assert relative_error(grad_x, true_grad_x) < most
    grad_weight, grad_bias = torch.zeros(2, num_in, device=DEVICE)
    norm_kernels.combine_gradients[(num_in,)](sums.partial, rstd, grad_weight, grad_bias, **sums.combine_sizes)

    normalised = (total[:n].double() - mean.double()[:, None, None]) * rstd.double()[:, None, None]
    leaves = [norm_weight.double().requires_grad_(), bias.double().requires_grad_()]
    activated = F.leaky_relu(normalised * leaves[0][:, None, None] + leaves[1][:, None, None], 0.1)
    true_weight, true_bias = torch.autograd.grad(activated, leaves, grad_x.double())
    # The sums are those of the stored, rounded gradient, so they are as exact as float32, whatever the type.
    assert relative_error(grad_weight, true_weight) < 1e-4
    assert relative_error(grad_bias, true_bias) < 1e-4


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_convolution_and_gradients_equal_float64_autograd(case: tuple[int, int, int, int, int], group: int) -> None:
    torch.manual_seed(0)
    assert_convolution_equals_float64(case, sizes_of(group), torch.float32, SMALL)


@pytest.mark.parametrize(("bands", "images"), [(2, 1), (2, 4), (4, 2)])
def test_bands_of_rows_give_the_float64_convolution(bands: int, images: int) -> None:
    torch.manual_seed(1)
    case = (6, 16, 8, 16, 16)
    assert_convolution_equals_float64(case, sizes_of(1, bands, images=images), torch.float32, SMALL)
    assert_moments_equal_float64(case, sizes_of(1, bands, images=images), torch.float32, SMALL, has_skip=True)


@pytest.mark.parametrize("has_skip", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_moments_of_the_stored_sum_equal_float64(
    case: tuple[int, int, int, int, int], group: int, has_skip: bool
) -> None:
    torch.manual_seed(2)
    assert_moments_equal_float64(case, sizes_of(group), torch.float32, SMALL, has_skip)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradient_sums_of_the_first_images_equal_float64_autograd(
    case: tuple[int, int, int, int, int], group: int
) -> None:
    torch.manual_seed(3)
    assert_gradient_sums_equal_float64(case, sizes_of(group), torch.float32, SMALL)


def test_moments_in_half_precision_are_those_of_the_rounded_sum() -> None:
    torch.manual_seed(4)
    case = (3, 16, 8, 8, 16)
    # Triton's interpreter has no product of bfloat16 matrices, so this test takes float16.
    assert_moments_equal_float64(case, sizes_of(2), torch.float16, 1e-3, has_skip=True)
    assert_gradient_sums_equal_float64(case, sizes_of(2), torch.float16, 1e-3)


def test_shapes_that_do_not_fill_powers_of_two_are_refused() -> None:
    assert fused_conv.slide_takes(images_of(1, 16, 8, 8), 32, sizes_of(2))
    assert not fused_conv.slide_takes(images_of(1, 3, 8, 8), 32, sizes_of(2))
    assert not fused_conv.slide_takes(images_of(1, 16, 8, 12), 32, sizes_of(2))
    assert not fused_conv.slide_takes(images_of(1, 16, 8, 8), 24, sizes_of(2))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("case", [(960, 32, 32, 32, 32), (511, 32, 32, 32, 32), (960, 16, 32, 32, 32)])
def test_kernels_on_a_gpu_equal_float64_within_bfloat16_rounding(
    case: tuple[int, int, int, int, int], group: int
) -> None:
    torch.manual_seed(5)
    sizes = fused_conv.SlideSizes(images=2 * group, group=group, num_warps=4, stages=3)
    assert_convolution_equals_float64(case, sizes, torch.bfloat16, 5e-3)
    assert_moments_equal_float64(case, sizes, torch.bfloat16, 5e-3, has_skip=True)
    assert_gradient_sums_equal_float64(case, sizes, torch.bfloat16, 5e-3)
