from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mnar.models import MLP, Classifier, WideResNet
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.training.optimizer import Average, make_optimizer
from mnar.training.sgd import SGD
from mnar.types import Samples
from tests.support.equality import assert_same


class SmallNet(Classifier):
    """A layer, a norm and the head."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(4, 2)
        self.layer, self.norm = nn.Linear(3, 4), norm

    def features(self, x: Samples) -> Tensor:
        features: Tensor = self.norm(self.layer(x))
        return features


def make_model(norm: nn.Module | None = None) -> SmallNet:
    torch.manual_seed(0)
    return SmallNet(norm or nn.BatchNorm1d(4)).double()


class Formula:
    """What an optimiser does with one parameter, as its paper has it: the change for a learning rate of 1."""

    def __init__(self, momentum: float) -> None:
        self.momentum, self.steps_done = momentum, 0
        self.mean: Tensor | float = 0.0
        self.mean_square: Tensor | float = 0.0

    def sgd(self, slope: Tensor) -> Tensor:
        self.mean = self.momentum * self.mean + slope
        return slope + self.momentum * self.mean  # Nesterov's

    def adam(self, slope: Tensor) -> Tensor:
        self.steps_done += 1
        self.mean = 0.9 * self.mean + 0.1 * slope
        self.mean_square = 0.999 * self.mean_square + 0.001 * slope**2
        mean, mean_square = self.mean / (1 - 0.9**self.steps_done), self.mean_square / (1 - 0.999**self.steps_done)
        return mean / (mean_square**0.5 + 1e-8)

    def rmsprop(self, slope: Tensor) -> Tensor:
        self.mean_square = 0.9 * self.mean_square + 0.1 * slope**2
        return slope / (self.mean_square**0.5 + 1e-7)


@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adam", 0.9), ("rmsprop", 0.9)])
def test_four_steps_equal_the_formula_with_a_learning_rate_that_moves(kind: str, momentum: float) -> None:
    model = make_model()
    lr = torch.tensor(0.0)
    optimizer = make_optimizer(kind, model, lr=lr, momentum=momentum, weight_decay=0.01)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    change = {name: getattr(Formula(momentum), kind) for name in expected}
    for rate in (0.1, 0.07, 0.02, 0.05):
        lr.fill_(rate)  # in place, as the loop does
        optimizer.zero_grad()
        model(torch.randn(5, 3).double()).square().sum().backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            decay = 0.0 if name.startswith("norm.") else 0.01
            slope = parameter.grad + decay * expected[name]
            expected[name] = expected[name] - lr.item() * change[name](slope)
            torch.testing.assert_close(parameter.detach(), expected[name])


def test_an_unknown_optimiser_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown train\.optimizer 'lion'; choose sgd, adam, rmsprop or muon"):
        make_optimizer("lion", make_model(), lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.0)


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


class CopiedTypes(TorchDispatchMode):
    """Keeps the data types of each list of tensors that is copied."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lists: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._foreach_copy_.default:
            self.lists.append({tensor.dtype for tensor in args[1]})
        return func(*args, **(kwargs or {}))


def test_average_copies_buffers_of_each_type_at_once_since_a_gpu_copies_mixed_lists_one_by_one() -> None:
    average = Average(WideResNet((3, 8, 8), 2, depth=10, width=1), decay=0.9)
    with CopiedTypes() as copied:
        average.update()
    assert sorted(copied.lists, key=str) == [{torch.float32}, {torch.int64}]


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


def test_average_without_decay_is_a_copy_of_the_model() -> None:
    model = make_model()
    average = Average(model, decay=0.0)
    for _ in range(2):
        model(torch.randn(5, 3).double())
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter)
        average.update()
        assert_same(dict(average.model.state_dict()), dict(model.state_dict()))


def test_average_restarted_is_the_model_as_it_is_now_and_averages_from_there() -> None:
    model = make_model()
    average = Average(model, decay=0.9)
    addresses = [tensor.data_ptr() for tensor in average.model.state_dict().values()]
    model(torch.randn(5, 3).double())
    for parameter in model.parameters():
        parameter.data.normal_()
    average.restart()
    assert_same(dict(average.model.state_dict()), dict(model.state_dict()))
    before = model.head.weight.detach().clone()
    model.head.weight.data += 1
    average.update()
    torch.testing.assert_close(average.model.head.weight, before + 0.1)
    assert [tensor.data_ptr() for tensor in average.model.state_dict().values()] == addresses, "in place"


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_sgd_equals_that_of_torch_bit_for_bit_and_reads_its_state(momentum: float) -> None:
    torch.manual_seed(0)
    ours, theirs = [torch.randn(7, 3).requires_grad_(), torch.randn(5).requires_grad_()], []
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    lr = torch.tensor(0.1)

    def groups(parameters: list[torch.Tensor]) -> list[dict[str, object]]:
        return [{"params": parameters[:1], "weight_decay": 0.01}, {"params": parameters[1:], "weight_decay": 0.0}]

    options = {"lr": lr, "momentum": momentum}
    sgd, reference = (
        SGD(groups(ours), **options),
        torch.optim.SGD(groups(theirs), nesterov=momentum > 0, fused=True, **options),
    )
    for step in range(12):
        lr.fill_(0.1 / (1 + step))
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine) if step > 2 or mine.ndim > 1 else None  # one parameter joins later
            other.grad = None if mine.grad is None else mine.grad.clone()
        sgd.step()
        reference.step()
        if step == 6:
            saved = copy.deepcopy(reference.state_dict())
            sgd.load_state_dict(saved)
            for group in sgd.param_groups:
                group["lr"] = lr
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other)


def test_training_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from mnar.models import MLP
from mnar.training.optimizer import make_optimizer
for kind in ("sgd", "muon"):
    model = MLP((4,), 3)
    optimizer = make_optimizer(kind, model, lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.1)
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
