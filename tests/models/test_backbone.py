from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mnar.models import MLP, Backbone

SHAPE = (3, 8, 8)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.ReLU())


def test_logits_are_a_linear_head_on_the_flattened_output() -> None:
    given = network()
    model = Backbone(given, SHAPE, 4).eval()
    x = torch.randn(6, *SHAPE)
    expected = given.eval()(x).flatten(1)
    assert torch.equal(model.features(x), expected)
    assert model.num_features == expected.shape[1] == 5 * 3 * 3
    assert torch.equal(model(x), model.head(expected))


def test_a_network_is_copied_and_a_function_makes_a_fresh_one_each_time() -> None:
    given = network()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    models = [Backbone(given, SHAPE, 4) for _ in range(2)]
    for model in models:
        model(torch.randn(4, *SHAPE)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in given.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    made = [Backbone(network, SHAPE, 4).network.state_dict()["0.weight"] for _ in range(2)]
    assert not torch.equal(*made)


def test_trying_it_out_leaves_batch_norm_as_it_was() -> None:
    model = Backbone(network, SHAPE, 4)
    assert model.network.state_dict()["1.num_batches_tracked"] == 0
    assert model.training


class Pair(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x, x


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (MLP((7,), 3), r"cannot take samples of shape \(3, 8, 8\)"),
        (Pair(), "makes tuple; it must give one row of features for each"),
        (lambda: "wide_resnet", "the backbone is str; give an nn.Module"),
    ],
)
def test_what_cannot_be_a_backbone_is_refused_with_the_reason(backbone: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Backbone(backbone, SHAPE, 4)
