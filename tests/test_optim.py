from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mnar.models import MLP, Classifier
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.optim import Average, cosine, make_optimizer

FIXTURES = json.loads((Path(__file__).parent / "fixtures.json").read_text())


class SmallNet(Classifier):
    """A layer, a norm and the head."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(4, 2)
        self.layer, self.norm = nn.Linear(3, 4), norm

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.norm(self.layer(x))
        return features


def make_model(norm: nn.Module | None = None) -> SmallNet:
    torch.manual_seed(0)
    return SmallNet(norm or nn.BatchNorm1d(4)).double()


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_three_steps_equal_the_formula_of_nesterov_sgd_with_a_moving_learning_rate(momentum: float) -> None:
    model = make_model()
    lr = torch.tensor(0.0)
    optimizer = make_optimizer("sgd", model, lr=lr, momentum=momentum, weight_decay=0.01)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    for rate in (0.1, 0.07, 0.02):
        lr.fill_(rate)  # in place, as the loop does
        optimizer.zero_grad()
        model(torch.randn(5, 3).double()).square().sum().backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            decay = 0.0 if name.startswith("norm.") else 0.01
            slope = parameter.grad + decay * expected[name]
            velocity[name] = momentum * velocity[name] + slope
            expected[name] = expected[name] - lr.item() * (slope + momentum * velocity[name])
            torch.testing.assert_close(parameter.detach(), expected[name])


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        BatchNormLeakyReLU(4, slope=0.1, momentum=0.1),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
    ],
)
def test_everything_but_normalisation_decays_and_nothing_is_left_out(norm: nn.Module) -> None:
    model = make_model(norm)
    optimizer = make_optimizer("sgd", model, lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.5)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        "head.weight": 0.5,
        "head.bias": 0.5,
        "layer.weight": 0.5,
        "layer.bias": 0.5,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
    }


def test_frozen_parameters_are_left_alone() -> None:
    model = make_model()
    frozen = {model.layer.weight.requires_grad_(False), model.norm.weight.requires_grad_(False)}
    optimizer = make_optimizer("sgd", model, lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.5)
    trained = {p for group in optimizer.param_groups for p in group["params"]}
    assert trained == set(model.parameters()) - frozen


@pytest.mark.parametrize(("at", "lr"), FIXTURES["baselines"]["lr"].items())
def test_cosine_gives_the_learning_rates_of_the_fixtures(at: str, lr: float) -> None:
    progress = torch.tensor(float(at.rstrip("%")) / 100, dtype=torch.float64)
    assert 0.03 * cosine(progress).item() == pytest.approx(lr, rel=1e-12)


def test_average_is_the_exponential_one_and_copies_batch_norm_statistics() -> None:
    model = make_model()
    average = Average(model, decay=0.9)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        model(torch.randn(5, 3).double())  # moves the statistics
        for name, parameter in model.named_parameters():
            parameter.data += torch.randn_like(parameter)
            expected[name] = 0.9 * expected[name] + 0.1 * parameter.detach()
        average.update()
    for name, parameter in average.model.named_parameters():
        torch.testing.assert_close(parameter, expected[name])
    buffers = dict(model.named_buffers())
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} == set(buffers)
    for name, buffer in average.model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_average_of_a_model_without_buffers_is_the_exponential_one() -> None:
    model = MLP((3,), 2, hidden=(4,))
    assert list(model.buffers()) == []
    average, before = Average(model, decay=0.9), model.head.weight.detach().clone()
    model.head.weight.data += 1
    average.update()
    torch.testing.assert_close(average.model.head.weight, before + 0.1)


def test_average_takes_no_gradient_and_stays_in_evaluation_mode() -> None:
    average = Average(make_model().train(), decay=0.9)
    assert not average.model.training
    assert not any(p.requires_grad for p in average.model.parameters())
