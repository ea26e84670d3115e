from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from mnar.optim import Average, cosine, sgd

FIXTURES = json.loads((Path(__file__).parent / "fixtures.json").read_text())


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_three_steps_equal_the_formula_of_nesterov_sgd_with_a_moving_learning_rate(momentum: float) -> None:
    model = make_model()
    lr = torch.tensor(0.0)
    optimizer = sgd(model, lr=lr, momentum=momentum, weight_decay=0.01)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    for rate in (0.1, 0.07, 0.02):
        lr.fill_(rate)  # in place, as the loop does
        optimizer.zero_grad()
        model(torch.randn(5, 3).double()).square().sum().backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            decay = 0.01 if parameter.ndim >= 2 else 0.0
            slope = parameter.grad + decay * expected[name]
            velocity[name] = momentum * velocity[name] + slope
            expected[name] = expected[name] - lr.item() * (slope + momentum * velocity[name])
            torch.testing.assert_close(parameter.detach(), expected[name])


def test_biases_and_batch_norm_do_not_decay() -> None:
    model = make_model()
    optimizer = sgd(model, lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.5)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    assert decayed == {id(p) for name, p in model.named_parameters() if name in ("0.weight", "2.weight")}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_frozen_parameters_are_left_alone() -> None:
    model = make_model()
    frozen = next(model.parameters()).requires_grad_(False)
    optimizer = sgd(model, lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.5)
    assert all(p is not frozen for group in optimizer.param_groups for p in group["params"])


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
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} == set(buffers)
    for name, buffer in average.model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_average_takes_no_gradient_and_stays_in_evaluation_mode() -> None:
    average = Average(make_model().train(), decay=0.9)
    assert not average.model.training
    assert not any(p.requires_grad for p in average.model.parameters())
