from __future__ import annotations

import torch
from torch import nn

from mnar.models.projection import Projection, similarity


def test_projection_is_two_linear_layers_with_the_activation_between_on_the_unit_sphere() -> None:
    torch.manual_seed(0)
    projection = Projection(5, 3, nn.LeakyReLU(0.1))
    features = torch.randn(7, 5)
    parameters = dict(projection.named_parameters())
    assert [tuple(parameter.shape) for parameter in parameters.values()] == [(5, 5), (5,), (3, 5), (3,)]
    weight1, bias1, weight2, bias2 = parameters.values()
    hidden = features @ weight1.T + bias1
    raw = torch.where(hidden > 0, hidden, 0.1 * hidden) @ weight2.T + bias2
    torch.testing.assert_close(projection(features), raw / raw.square().sum(1, keepdim=True).sqrt())


def test_projection_of_half_precision_features_is_float32() -> None:
    assert Projection(5, 3, nn.ReLU())(torch.randn(2, 5).bfloat16()).dtype == torch.float32


def test_rows_that_are_not_filled_get_no_share_and_no_gradient() -> None:
    torch.manual_seed(0)
    embeddings, bank = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    filled = torch.tensor([True, False, True, True, False])
    found = similarity(embeddings, bank, filled, 0.2)
    torch.testing.assert_close(found[:, filled], embeddings @ bank[filled].T / 0.2)
    assert not found.softmax(1)[:, ~filled].any()
    found[:, ~filled].sum().backward()
    assert embeddings.grad is not None
    assert not embeddings.grad.any()
