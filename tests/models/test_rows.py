"""A batch in two parts, of which only the first has a gradient, against autograd of the formula."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.models import MODELS, rows
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.classifier import Classifier
from mnar.models.convolution import Convolution
from mnar.models.rows import divided, in_one_block, joined
from mnar.types import Rows
from tests.support.triton_kernels import ON_GPU, relative_error

NUM_TRAINED, NUM_OBSERVED = 5, 3
IMAGES = {"wide_resnet": {"depth": 10, "width": 1}, "resnet18": {}, "small_cnn": {}, "mlp": {}, "encoder_mlp": {}}


def literal_norm(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Batch norm by its formula. Mean and variance have the values of all rows and the gradients of trained rows."""
    over = [0, *range(2, x.ndim)]
    trained, observed = x[:NUM_TRAINED], x[NUM_TRAINED:].detach()
    rows = torch.cat([trained.detach(), observed])
    mean, var = rows.mean(over, keepdim=True), rows.var(over, unbiased=False, keepdim=True)
    trained_mean = trained.mean(over, keepdim=True)
    trained_var = (trained - mean).square().mean(over, keepdim=True)
    mean = mean + trained_mean - trained_mean.detach()
    var = var + trained_var - trained_var.detach()
    shape = (1, -1, *(1,) * (x.ndim - 2))
    y = (torch.cat([trained, observed]) - mean) / (var + norm.eps).sqrt() * norm.weight.view(shape)
    y = y + norm.bias.view(shape)
    slope = getattr(norm, "slope", 1.0)
    return torch.where(y > 0, y, slope * y)


def gradients(model: Classifier, features: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (features[:NUM_TRAINED] * torch.linspace(-1, 1, features.shape[1])).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", IMAGES)
def test_the_gradients_of_a_network_equal_those_of_the_literal_formula(name: str) -> None:
    torch.manual_seed(0)
    shape = (3, 32, 32) if name == "resnet18" else (3, 8, 8)
    model = MODELS[name](shape, 4, **IMAGES[name]).double().train()
    literal = copy.deepcopy(model)
    for module in literal.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.forward = partial(literal_norm, module)  # type: ignore[method-assign]
    x = torch.randn(NUM_TRAINED + NUM_OBSERVED, *shape, dtype=torch.float64)

    features, expected = model.features(divided(x, NUM_TRAINED)), literal.features(x)
    torch.testing.assert_close(features, expected)
    found, wanted = gradients(model, features), gradients(literal, expected)
    assert found.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        torch.testing.assert_close(found[parameter], gradient, msg=lambda text, name=parameter: f"{name}: {text}")


@pytest.mark.parametrize("name", IMAGES)
def test_observed_copies_of_the_trained_rows_give_the_gradient_of_ordinary_autograd(name: str) -> None:
    torch.manual_seed(0)
    shape = (3, 32, 32) if name == "resnet18" else (3, 8, 8)
    model = MODELS[name](shape, 4, **IMAGES[name]).double().train()
    ordinary = copy.deepcopy(model)
    trained = torch.randn(NUM_TRAINED, *shape, dtype=torch.float64)
    features, expected = model.features(Rows(trained, trained.clone())), ordinary.features(trained.repeat(2, 1, 1, 1))
    torch.testing.assert_close(features, expected)
    found, wanted = gradients(model, features), gradients(ordinary, expected)
    for parameter, gradient in wanted.items():
        torch.testing.assert_close(found[parameter], gradient)
    for buffer, value in ordinary.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[buffer], value)


def test_batch_norm_makes_the_gradient_differ_from_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = MODELS["small_cnn"]((1, 8, 8), 4).double().train()
    x = torch.randn(NUM_TRAINED + NUM_OBSERVED, 1, 8, 8, dtype=torch.float64)
    parts, whole = gradients(model, model.features(divided(x, NUM_TRAINED))), gradients(model, model.features(x))
    first = "layers.0.weight"
    cosine = torch.cosine_similarity(parts[first].flatten(), whole[first].flatten(), dim=0)
    assert 0.2 < cosine < 0.999


def test_observed_rows_have_no_gradient() -> None:
    model = MODELS["wide_resnet"]((3, 8, 8), 4, depth=10, width=1).train()
    features = model.features(divided(torch.randn(8, 3, 8, 8), NUM_TRAINED))
    model.zero_grad()
    features[NUM_TRAINED:].sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_neighbours_in_memory_are_joined_without_a_copy() -> None:
    x = torch.randn(8, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    parts = divided(x, NUM_TRAINED)
    assert in_one_block(*parts).data_ptr() == x.data_ptr()
    assert torch.equal(in_one_block(*parts), x)
    apart = Rows(parts.trained, parts.observed.clone())
    assert in_one_block(*apart).data_ptr() != x.data_ptr()
    assert torch.equal(in_one_block(*apart), x)
    assert torch.equal(joined(apart), x)
    swapped = in_one_block(parts.observed, parts.trained)
    assert torch.equal(swapped, torch.cat([parts.observed, parts.trained]))


def images(channels: int, dtype: torch.dtype) -> Tensor:
    device = "cuda" if ON_GPU else "cpu"
    x = torch.randn(NUM_TRAINED + NUM_OBSERVED, channels, 6, 5, device=device, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("has_skip", [False, True])
def test_the_triton_norm_equals_the_plain_norm_on_rows(has_skip: bool) -> None:
    pytest.importorskip("triton")
    from mnar.models.fused_norm import add_norm_leaky_relu

    torch.manual_seed(0)
    device = "cuda" if ON_GPU else "cpu"
    plain = BatchNormLeakyReLU(16, slope=0.1, momentum=0.1).to(device)
    plain.fused = False
    nn.init.normal_(plain.weight)
    fused = copy.deepcopy(plain)
    leaves = [images(16, torch.float32).requires_grad_() for _ in range(2 if has_skip else 1)]
    copies = [leaf.detach().clone(memory_format=torch.channels_last).requires_grad_() for leaf in leaves]

    def parts(inputs: list[Tensor]) -> list[Rows | None]:
        return [*(divided(leaf, NUM_TRAINED) for leaf in inputs), None][:2]

    total, activated = plain.add(*parts(leaves))
    statistics = (fused.running_mean, fused.running_var, fused.num_batches_tracked)
    options = {"momentum": fused.momentum, "eps": fused.eps, "slope": fused.slope}
    fused_total, fused_activated = add_norm_leaky_relu(*parts(copies), fused.weight, fused.bias, *statistics, **options)
    for x, y in zip((*total, *activated), (*fused_total, *fused_activated), strict=True):
        torch.testing.assert_close(y, x)
    assert not fused_activated.observed.requires_grad
    grad_activated, grad_total = images(16, torch.float32)[:NUM_TRAINED], images(16, torch.float32)[:NUM_TRAINED]
    torch.autograd.backward([activated.trained, total.trained], [grad_activated, grad_total])
    torch.autograd.backward([fused_activated.trained, fused_total.trained], [grad_activated, grad_total])
    for x, y in zip((*leaves, plain.weight, plain.bias), (*copies, fused.weight, fused.bias), strict=True):
        assert x.grad is not None
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused.running_var, plain.running_var)


@pytest.mark.parametrize("operation", ["library", "triton"])
def test_a_convolution_of_rows_equals_autograd(operation: str) -> None:
    from mnar.models import convolution

    if operation == "triton":
        pytest.importorskip("triton")
        from mnar.models.fused_conv import TritonConvolution

        def chosen(weight: Tensor) -> object:
            return TritonConvolution(weight)
    else:

        def chosen(weight: Tensor) -> object:
            return convolution.LibraryConvolution(weight, (1, 1), (1, 1))

    torch.manual_seed(0)
    x = images(16, torch.float32).requires_grad_()
    weight = torch.randn(32, 16, 3, 3, device=x.device).requires_grad_()
    trained, observed = convolution._Convolve.apply(*divided(x, NUM_TRAINED), weight, chosen(weight.detach()))
    y = F.conv2d(x.detach(), weight.detach(), padding=1)
    close = {"rtol": 2e-2, "atol": 2e-2} if ON_GPU else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(trained, y[:NUM_TRAINED], **close)
    torch.testing.assert_close(observed, y[NUM_TRAINED:], **close)
    assert not observed.requires_grad

    grad = torch.randn_like(trained)
    trained.backward(grad)
    exact_x, exact_weight = x.detach()[:NUM_TRAINED].clone().requires_grad_(), weight.detach().clone().requires_grad_()
    F.conv2d(exact_x, exact_weight, padding=1).backward(grad)
    assert x.grad is not None
    assert not x.grad[NUM_TRAINED:].any()
    torch.testing.assert_close(x.grad[:NUM_TRAINED], exact_x.grad, **close)
    torch.testing.assert_close(weight.grad, exact_weight.grad, **close)


def test_the_relu_of_a_sum_in_one_block_equals_autograd() -> None:
    torch.manual_seed(0)
    x, y = images(4, torch.float32).requires_grad_(), images(4, torch.float32).requires_grad_()
    trained, observed = rows._ReLUOfSum.apply(*divided(x, NUM_TRAINED), *divided(y, NUM_TRAINED))
    assert torch.equal(torch.cat([trained, observed]), F.relu(x + y))
    assert in_one_block(trained, observed).data_ptr() == trained.data_ptr()
    grad = torch.randn_like(trained)
    trained.backward(grad)
    assert x.grad is not None
    assert torch.equal(x.grad[:NUM_TRAINED], grad * (trained > 0))
    assert torch.equal(x.grad, y.grad)
    assert not x.grad[NUM_TRAINED:].any()


def gpu_gradients(model: Classifier, x: Tensor) -> dict[str, Tensor]:
    """The gradients of a loss of the trained rows. A float32 model computes in bfloat16."""
    with torch.autocast("cuda", torch.bfloat16, enabled=x.dtype == torch.float32):
        features = model.features(divided(x, 14))
    features[:14].double().square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_the_gradients_of_the_kernels_are_as_exact_as_those_of_the_plain_operations() -> None:
    torch.manual_seed(0)
    fused = MODELS["wide_resnet"]((3, 32, 32), 10, depth=10).cuda().train()
    fused.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain = copy.deepcopy(fused)
    for module in plain.modules():
        if isinstance(module, BatchNormLeakyReLU | Convolution):
            module.fused = False
    exact = copy.deepcopy(plain).double()
    x = torch.randn(24, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    of_fused, of_plain, true = gpu_gradients(fused, x), gpu_gradients(plain, x), gpu_gradients(exact, x.double())
    assert of_fused.keys() == of_plain.keys() == true.keys()
    for name, gradient in of_fused.items():
        error, error_of_plain = relative_error(gradient, true[name]), relative_error(of_plain[name], true[name])
        assert error < 1.5 * error_of_plain + 0.02, f"{name}: {error} against {error_of_plain}"
