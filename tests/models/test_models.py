from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.models import MLP, MODELS, Classifier, ResNet18, SmallCNN, WideResNet

# Networks whose smallest useful input is another than the default.
SMALL_INPUTS: dict[str, tuple[int, ...]] = {
    "resnet18": (3, 64, 64),
    "encoder_mlp": (12,),
}


def small_input(name: str) -> tuple[int, ...]:
    return SMALL_INPUTS.get(name, (3, 16, 16))


WITH_DROPOUT = ("wide_resnet", "resnet18", "mlp", "small_cnn")


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(model: type[Classifier], *arguments: object, **options: object) -> Classifier:
    with torch.device("meta"):
        return model(*arguments, **options)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (on_meta(WideResNet, (3, 32, 32), 10), 1_467_610),
        (on_meta(WideResNet, (3, 32, 32), 100, width=8), 23_401_012),
        (on_meta(ResNet18, (3, 224, 224), 1000), 11_689_512),
        (on_meta(MLP, (5,), 3, hidden=(7,)), 5 * 7 + 7 + 7 * 3 + 3),
    ],
    ids=["WRN-28-2", "WRN-28-8", "ResNet-18", "MLP"],
)
def test_the_number_of_parameters_is_the_published_one(model: Classifier, count: int) -> None:
    assert num_parameters(model) == count


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_head_of_the_features(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](small_input(name), 7).eval()
    x = torch.randn(3, *small_input(name))
    features = model.features(x)
    assert features.shape == (3, model.num_features)
    assert model(x).shape == (3, 7)
    torch.testing.assert_close(model(x), features @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_finite_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](small_input(name), 7)
    model(torch.randn(4, *small_input(name))).square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_never_waits_for_the_device(name: str) -> None:
    with FakeTensorMode():  # raises where a value would have to be read
        model = MODELS[name](small_input(name), 7)
        model(torch.randn(4, *small_input(name))).mean().backward()


def test_wide_resnet_has_the_published_strides_and_shortcuts() -> None:
    model = on_meta(WideResNet, (3, 32, 32), 10, depth=16)
    convolutions = {
        name: (module.in_channels, module.out_channels, module.kernel_size[0], module.stride[0])
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
    }
    assert {name: kind for name, kind in convolutions.items() if "conv2" not in name} == {
        "stem": (3, 16, 3, 1),
        "blocks.0.conv1": (16, 32, 3, 1),
        "blocks.0.shortcut": (16, 32, 1, 1),
        "blocks.1.conv1": (32, 32, 3, 1),
        "blocks.2.conv1": (32, 64, 3, 2),
        "blocks.2.shortcut": (32, 64, 1, 2),
        "blocks.3.conv1": (64, 64, 3, 1),
        "blocks.4.conv1": (64, 128, 3, 2),
        "blocks.4.shortcut": (64, 128, 1, 2),
        "blocks.5.conv1": (128, 128, 3, 1),
    }


def test_wide_resnet_equals_a_literal_pre_activation_network() -> None:
    torch.manual_seed(0)
    model = WideResNet((3, 8, 8), 5, depth=16, width=2)
    x = torch.randn(6, 3, 8, 8)

    def activate(maps: torch.Tensor) -> torch.Tensor:
        mean, var = maps.mean((0, 2, 3), keepdim=True), maps.var((0, 2, 3), unbiased=False, keepdim=True)
        return nn.functional.leaky_relu((maps - mean) / (var + 1e-5).sqrt(), 0.1)  # weight 1, bias 0 at first

    maps = model.stem(x)
    for block in model.blocks:
        activated = activate(maps)
        shortcut = maps if block.shortcut is None else block.shortcut(activated)
        maps = shortcut + block.conv2(activate(block.conv1(activated)))
    pooled = activate(maps).mean((2, 3))
    torch.testing.assert_close(model.features(x), pooled, rtol=1e-4, atol=1e-5)


def test_wide_resnet_starts_as_published() -> None:
    torch.manual_seed(0)
    model = WideResNet((3, 32, 32), 10)
    weight = model.blocks[-1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (9 * weight.shape[0])) ** 0.5, rel=0.02)
    assert not model.head.bias.any()
    assert {(norm.momentum, norm.eps) for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)} == {
        (0.001, 1e-5)
    }


@pytest.mark.parametrize("depth", [11, 26, 29])
def test_a_depth_that_no_wide_resnet_has_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"depth is {depth}; it must be 6n \+ 4"):
        WideResNet((3, 32, 32), 10, depth=depth)


@pytest.mark.parametrize("model", [WideResNet, ResNet18, SmallCNN])
def test_a_table_is_refused_by_a_convolutional_model(model: type[Classifier]) -> None:
    with pytest.raises(ValueError, match=r"--set model\.name=mlp"):
        model((64,), 10)  # type: ignore[arg-type]


def test_an_image_too_small_for_small_cnn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"4x4 pixels or more, got \(1, 3, 8\); use --set model\.name=mlp"):
        SmallCNN((1, 3, 8), 10)


def test_mlp_without_hidden_layers_is_linear_in_the_flattened_input() -> None:
    model = MLP((2, 3), 4, hidden=())
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(model(x), model.head(x.reshape(5, 6)))


def dropout_rates(model: nn.Module) -> list[float]:
    return [module.p for module in model.modules() if isinstance(module, nn.Dropout)]


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_without_dropout_a_model_has_no_such_layer_and_is_the_one_that_has_never_heard_of_it(name: str) -> None:
    options = [{}, {"dropout": 0.0}, {"dropout": 0.3}]
    plain, without, dropped = (MODELS[name](small_input(name), 7, **chosen) for chosen in options)
    assert dropout_rates(plain) == dropout_rates(without) == []
    assert set(dropout_rates(dropped)) == {0.3}
    assert num_parameters(dropped) == num_parameters(plain)
    # The same numbers in the same order: whoever evaluates gets the same predictions.
    without.load_state_dict(plain.state_dict())
    names = list(dropped.state_dict())
    dropped.load_state_dict(dict(zip(names, plain.state_dict().values(), strict=True)))
    x = torch.randn(3, *small_input(name))
    expected = plain.eval()(x)
    assert torch.equal(without.eval()(x), expected)
    assert torch.equal(dropped.eval()(x), expected)


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_with_dropout_predictions_differ_from_pass_to_pass_and_every_parameter_learns(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](small_input(name), 7, dropout=0.3).eval()
    x = torch.randn(4, *small_input(name))
    assert torch.equal(model(x), model(x))
    for module in model.modules():
        module.training = isinstance(module, nn.Dropout)
    assert not torch.equal(model(x), model(x))
    model.train()(x).square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_wide_resnet_drops_what_enters_the_second_convolution_of_each_block() -> None:
    torch.manual_seed(0)
    model = WideResNet((3, 8, 8), 5, depth=10, width=1, dropout=0.5)
    entering: list[float] = []
    for block in model.blocks:
        block.conv2.register_forward_pre_hook(lambda _, inputs: entering.append((inputs[0] == 0).float().mean().item()))
    model(torch.randn(16, 3, 8, 8))
    assert entering == pytest.approx([0.5] * 3, abs=0.05)
    assert dropout_rates(model) == [0.5] * 3


@pytest.mark.parametrize("name", WITH_DROPOUT)
@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_a_dropout_that_is_no_share_is_refused(name: str, dropout: float) -> None:
    with pytest.raises(ValueError, match=f"dropout is {dropout}; expected a number of at least 0 and below 1"):
        MODELS[name](small_input(name), 7, dropout=dropout)


def test_dropout_without_a_hidden_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="choose hidden layers"):
        MLP((4,), 3, hidden=(), dropout=0.3)
