"""The module around the fused convolution, where there is no GPU, and the casts of its weight."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mnar.models.convolution import Convolution, weights_cast


def test_the_module_without_a_gpu_is_an_ordinary_convolution() -> None:
    layer = Convolution(3, 16, 3, stride=2)
    x = torch.randn(2, 3, 9, 9)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, stride=2, padding=1))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Sequential:
    """Three layers, of which the second one does not cast its weight itself."""
    layers = nn.Sequential(Convolution(3, 16, 3), Convolution(16, 16, 3), Convolution(16, 8, 1, stride=2))
    monkeypatch.setattr(Convolution, "casts_weight", property(lambda layer: layer.fused))  # as on a GPU
    layers[1].fused = False
    return layers.to(memory_format=torch.channels_last)


def test_casts_have_the_current_values_and_the_strides_of_the_weights(model: nn.Sequential) -> None:
    for _ in range(2):
        with weights_cast(model, torch.bfloat16):
            assert model[1].cast_weight is None
            for layer in (model[0], model[2]):
                assert torch.equal(layer.cast_weight, layer.weight.bfloat16())
                assert layer.cast_weight.stride() == layer.weight.stride()
                assert not layer.cast_weight.requires_grad
        for layer in model:
            nn.init.normal_(layer.weight)  # as a step of the optimiser or load_state_dict would change it


def test_casts_are_forgotten_after_a_forward_pass_even_if_it_fails(model: nn.Sequential) -> None:
    with weights_cast(model, torch.bfloat16):
        pass
    assert {layer.cast_weight for layer in model} == {None}
    with pytest.raises(RuntimeError, match="out of memory"), weights_cast(model, torch.bfloat16):
        raise RuntimeError("out of memory")
    assert {layer.cast_weight for layer in model} == {None}
    assert {layer.cast_weight for layer in copy.deepcopy(model)} == {None}


def test_a_later_forward_pass_leaves_the_casts_of_an_earlier_one_to_its_backward_pass(model: nn.Sequential) -> None:
    with weights_cast(model, torch.bfloat16):
        earlier = model[0].cast_weight
    values = earlier.clone()
    nn.init.normal_(model[0].weight)
    with weights_cast(model, torch.bfloat16):
        assert not torch.equal(model[0].cast_weight, values)
    assert torch.equal(earlier, values)
