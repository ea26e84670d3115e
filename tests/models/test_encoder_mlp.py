from __future__ import annotations

import pytest
import torch

from mnar.models.encoder_mlp import EncoderMLP, with_encoder


def test_logits_are_layers_on_the_encoded_row() -> None:
    torch.manual_seed(0)
    model = EncoderMLP((6,), 4, encoder_width=5, hidden=(3,))
    x = torch.randn(7, 6)
    encoded = (x @ model.encoder[1].weight.T + model.encoder[1].bias).clamp(min=0)
    features = (encoded @ model.layers[0].weight.T + model.layers[0].bias).clamp(min=0)
    torch.testing.assert_close(model.encoder(x), encoded)
    torch.testing.assert_close(model.features(x), features)
    torch.testing.assert_close(model(x), features @ model.head.weight.T + model.head.bias)


def test_the_encoder_is_as_wide_as_the_input_and_the_rest_as_published() -> None:
    model = EncoderMLP((784,), 10)
    shapes = [tuple(parameter.shape) for name, parameter in model.named_parameters() if name.endswith("weight")]
    assert sorted(shapes) == sorted([(784, 784), (100, 784), (100, 100), (10, 100)])
    assert (model.input_width, model.encoder_width, model.num_features) == (784, 784, 100)


def test_without_hidden_layers_the_encoded_row_is_the_features() -> None:
    model = EncoderMLP((2, 3), 4, encoder_width=5, hidden=())
    x = torch.randn(7, 2, 3)
    torch.testing.assert_close(model.features(x), model.encoder(x))
    assert model.num_features == 5


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="encoder_width is 0; expected a whole number from 1 to"):
        EncoderMLP((6,), 4, encoder_width=0)


def test_with_encoder_gives_the_model_back_or_says_which_to_choose() -> None:
    model = EncoderMLP((6,), 4)
    assert with_encoder(model) is model
    with pytest.raises(ValueError, match=r"Linear has none; choose --set model\.name=encoder_mlp"):
        with_encoder(torch.nn.Linear(6, 4))
