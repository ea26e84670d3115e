"""The Triton norm against plain PyTorch: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mnar.models.batch_norm import BatchNormLeakyReLU
from tests.support.triton_kernels import DEVICE, ON_GPU, relative_error

pytest.importorskip("triton")
fused_norm = pytest.importorskip("mnar.models.fused_norm")

TOLERANCE = {
    torch.float32: 2e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 5e-3,
}  # a few roundings of the output type


def norm_of(channels: int, dtype: torch.dtype = torch.float32) -> BatchNormLeakyReLU:
    norm = BatchNormLeakyReLU(channels, slope=0.1, momentum=0.1, eps=1e-5).to(DEVICE, dtype)
    with torch.no_grad():
        norm.weight.normal_(1.0, 0.5)
        norm.bias.normal_(0.0, 0.5)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return norm


def images(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Eighths up to 15: the sum of two is exact in bfloat16 too, so it has the same sign in any precision."""
    channel_mean = 2 * torch.randn(1, shape[1], 1, 1, device=DEVICE)
    x = (torch.randn(shape, device=DEVICE) * 2 + channel_mean).clamp(-15, 15)
    return ((8 * x).round() / 8).to(dtype).contiguous(memory_format=torch.channels_last)


def add_fused(norm: BatchNormLeakyReLU, x: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
    statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    both: tuple[Tensor, Tensor] = fused_norm.add_norm_leaky_relu(
        *(x, skip, norm.weight, norm.bias, *statistics),
        momentum=norm.momentum,
        eps=norm.eps,
        slope=norm.slope,
    )
    return both


def add_plain(norm: BatchNormLeakyReLU, x: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
    norm.fused = False
    return norm.add(x, skip)


def everything(
    add: Callable[..., tuple[Tensor, Tensor]],
    norm: BatchNormLeakyReLU,
    inputs: list[Tensor],
    grads: list[Tensor],
) -> dict[str, Tensor]:
    """Outputs, gradients, statistics. Inputs: x, or x and skip; grads: of the activated, and of the sum."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    x, skip = (*leaves, None)[:2]
    total, activated = add(norm, x, skip)
    torch.autograd.backward([activated, total][: len(grads)], grads)
    found = {"total": total, "activated": activated, "weight": norm.weight.grad, "bias": norm.bias.grad}
    found |= {f"input {i}": leaf.grad for i, leaf in enumerate(leaves)} | dict(norm.named_buffers())
    return {name: value.detach() for name, value in found.items() if value is not None}


def assert_equal_to_float64(
    inputs: list[Tensor],
    grads: list[Tensor],
    tolerance: float,
    add: Callable[..., tuple[Tensor, Tensor]] = add_fused,
) -> None:
    channels = inputs[0].shape[1]
    norm, reference = norm_of(channels), norm_of(channels, torch.float64)
    reference.load_state_dict(norm.state_dict())
    found = everything(add, norm, inputs, grads)
    true = everything(add_plain, reference, [x.double() for x in inputs], [grad.double() for grad in grads])
    assert found.keys() == true.keys()
    assert found["total"].dtype == found["activated"].dtype == found["input 0"].dtype == inputs[0].dtype
    errors = {name: relative_error(value, true[name]) for name, value in found.items()}
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("gather_programs", [3, 792])
@pytest.mark.parametrize(
    "shape", [(3, 16, 5, 7), (4, 32, 8, 8), (5, 48, 3, 3), (2, 128, 4, 4), (1, 24, 37, 31), (9, 3, 1, 1)]
)
@pytest.mark.parametrize("num_inputs", [1, 2])
def test_fused_norm_equals_float64_autograd(
    shape: tuple[int, ...], num_inputs: int, gather_programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(fused_norm, "GATHER_PROGRAMS", gather_programs)
    for tile in ("GATHER_TILE", "APPLY_TILE"):
        monkeypatch.setattr(fused_norm, tile, 256)  # several tiles a program, several programs a tensor
    inputs = [images(shape) for _ in range(num_inputs)]
    grads = [torch.randn_like(inputs[0]) for _ in range(num_inputs)]
    assert_equal_to_float64(inputs, grads, TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_norm_in_half_precision_equals_float64_autograd_within_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    inputs = [images((4, 32, 8, 8), dtype), images((4, 32, 8, 8), dtype)]
    grads = [torch.randn_like(inputs[0]), torch.randn_like(inputs[0])]
    assert_equal_to_float64(inputs, grads, TOLERANCE[dtype])


def test_gradient_without_a_use_of_the_sum_equals_float64_autograd() -> None:
    torch.manual_seed(2)
    inputs = [images((3, 32, 5, 5)), images((3, 32, 5, 5))]
    assert_equal_to_float64(inputs, [torch.randn_like(inputs[0])], TOLERANCE[torch.float32])


def test_gradient_through_the_sum_alone_is_passed_on() -> None:
    leaves = [images((2, 16, 3, 3)).requires_grad_(), images((2, 16, 3, 3)).requires_grad_()]
    total, _ = add_fused(norm_of(16), *leaves)
    grad = torch.randn_like(total)
    total.backward(grad)
    for leaf in leaves:
        torch.testing.assert_close(leaf.grad, grad, rtol=0, atol=0)


def test_gradient_in_another_memory_format_equals_float64_autograd() -> None:
    torch.manual_seed(3)
    pooled = torch.randn(3, 16, 1, 1, device=DEVICE).expand(3, 16, 4, 4)  # what a global average pool sends back
    assert_equal_to_float64([images((3, 16, 4, 4))], [pooled], TOLERANCE[torch.float32])


def test_a_mean_of_a_thousand_deviations_does_not_cancel() -> None:
    torch.manual_seed(4)
    x = images((4, 16, 9, 9)) + 2000.0  # the mean of squares less the squared mean would be wrong by a tenth
    assert_equal_to_float64([x], [torch.randn_like(x)], tolerance=1e-3)


def test_the_same_input_gives_the_same_bits() -> None:
    torch.manual_seed(5)
    inputs = [images((4, 32, 9, 9)), images((4, 32, 9, 9))]
    grads = [torch.randn_like(inputs[0]), torch.randn_like(inputs[0])]
    norm = norm_of(32)
    first, second = (everything(add_fused, copy.deepcopy(norm), inputs, grads) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(960, 32, 32, 32), (960, 64, 16, 16), (960, 128, 8, 8), (64, 1024, 7, 7)])
@pytest.mark.parametrize("num_inputs", [1, 2])
def test_the_module_on_a_gpu_equals_float64_within_bfloat16_rounding(shape: tuple[int, ...], num_inputs: int) -> None:
    inputs = [images(shape, torch.bfloat16) for _ in range(num_inputs)]
    grads = [torch.randn_like(inputs[0]) for _ in range(num_inputs)]
    assert_equal_to_float64(inputs, grads, TOLERANCE[torch.bfloat16], add=BatchNormLeakyReLU.add)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_the_module_in_a_cuda_graph_equals_plain_operations() -> None:
    shape = (16, 32, 8, 8)
    norm, plain = norm_of(32), norm_of(32)
    plain.load_state_dict(norm.state_dict())
    x, skip, grad = (torch.zeros_like(images(shape)) for _ in range(3))
    x.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        total, activated = norm.add(x, skip)
        (grad_x,) = torch.autograd.grad(activated, x, grad)
        return total + activated, grad_x

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()  # compile
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, found_grad = step()
    norm.load_state_dict(plain.state_dict())  # in place: forget the warm-up

    for _ in range(3):
        fresh, fresh_skip, fresh_grad = (images(shape) for _ in range(3))
        with torch.no_grad():
            x.copy_(fresh), skip.copy_(fresh_skip), grad.copy_(fresh_grad)
        graph.replay()
        fresh.requires_grad_()
        total, activated = add_plain(plain, fresh, fresh_skip)
        (true_grad,) = torch.autograd.grad(activated, fresh, fresh_grad)
        torch.testing.assert_close(found, total + activated, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found_grad, true_grad, rtol=1e-4, atol=1e-4)
    for name, value in norm.named_buffers():
        torch.testing.assert_close(value, plain.get_buffer(name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 16, 4, 4), (1, 32, 8, 8)])
def test_without_running_statistics_the_outputs_are_the_same_and_the_norm_keeps_its_statistics(
    shape: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    norm, x, skip = norm_of(shape[1]), images(shape), images(shape)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    options = {"momentum": norm.momentum, "eps": norm.eps, "slope": norm.slope}
    kept = fused_norm.add_norm_leaky_relu(x, skip, norm.weight, norm.bias, None, None, None, **options)
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())
    expected = add_fused(norm, x, skip)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept, expected, strict=True))
    assert not any(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())
