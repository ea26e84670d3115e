"""The network as a learner meets it: the model, whatever the engine has wrapped around it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch import Tensor, nn

from mnar.models import MLP, SmallCNN, WideResNet
from mnar.models.batch_norm import statistics_kept
from mnar.training.engine import AutocastModel, Engine
from mnar.training.options import EngineOptions
from mnar.training.trainer import Trainer


def model_with_a_head() -> SmallCNN:
    torch.manual_seed(0)
    model = SmallCNN((1, 8, 8), 10, width=4)
    model.heads.update({"projection": nn.Linear(model.num_features, 3)})
    return model


def outputs(network: Any, images: Tensor) -> dict[str, Tensor]:
    """All that a learner may ask a network for."""
    features = network.features(images)
    return {
        "features": features,
        "logits": network.head(features),
        "projection": network.heads["projection"](features),
        "forward": network(images),
    }


def gradients(network: Any, images: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    torch.stack([output.square().mean() for output in outputs(network, images).values()]).sum().backward()
    named = {name.removeprefix("model."): p.grad for name, p in network.named_parameters()}
    return {name: gradient for name, gradient in named.items() if gradient is not None}


@pytest.mark.parametrize("training", [True, False])
def test_a_network_offers_features_head_and_heads_with_the_models_own_numbers(training: bool) -> None:
    model, images = model_with_a_head().train(training), torch.randn(6, 1, 8, 8)
    network = AutocastModel(model, torch.device("cpu"), torch.float32)
    assert network.training == training
    torch.testing.assert_close(outputs(network, images), outputs(model, images), atol=0, rtol=0)
    assert network.num_features == model.num_features
    assert {p.data_ptr() for p in network.parameters()} == {p.data_ptr() for p in model.parameters()}
    expected = gradients(model, images)
    assert set(expected) == {name for name, _ in model.named_parameters()}, "all are trained"
    torch.testing.assert_close(gradients(network, images), expected, atol=0, rtol=0)


def test_what_neither_a_network_nor_its_model_has_is_missing_by_its_name() -> None:
    network = AutocastModel(model_with_a_head(), torch.device("cpu"), torch.float32)
    with pytest.raises(AttributeError, match="wings"):
        _ = network.wings


def test_statistics_are_kept_through_a_network_too() -> None:
    model = model_with_a_head()
    network = AutocastModel(model, torch.device("cpu"), torch.bfloat16)
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(("mean", "var"))}
    with statistics_kept(network):
        network(torch.randn(6, 1, 8, 8))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers() if name in before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_teacher_is_the_averaged_model_in_training_mode_and_evaluation_leaves_it_so(
    trainer_of: Callable[..., Trainer], precision: str
) -> None:
    trainer = trainer_of("learner.name=mean_teacher", f"engine.precision={precision}")
    teacher = trainer.learner.teacher
    assert teacher is not None
    averaged = {p.data_ptr() for p in trainer.average.model.parameters()}
    assert {p.data_ptr() for p in teacher.parameters()} == averaged
    assert not averaged & {p.data_ptr() for p in trainer.model.parameters()}
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not any("teacher" in name for name in trainer.learner.state_dict())
    trainer.loader.seek(0)
    trainer.step()
    trainer.evaluate(1)
    assert {module.training for module in teacher.modules()} == {True}


def test_a_compiled_network_has_the_models_numbers_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # traced, and run as it stands
    engine = Engine(EngineOptions(device="cpu", precision="float32", compile=True))
    model, images = engine.place(model_with_a_head()), torch.randn(6, 1, 8, 8)
    network = engine.network(model)
    assert isinstance(network, AutocastModel)
    torch.testing.assert_close(outputs(network, images), outputs(model, images))
    torch.testing.assert_close(gradients(network, images), gradients(model, images))
    with statistics_kept(network):
        before = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(("mean", "var"))}
        network(images)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers() if name in before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_weights_that_are_cast_together_give_the_features_and_gradients_of_weights_cast_one_by_one() -> None:
    torch.manual_seed(0)
    engine = Engine(EngineOptions(compile=False, cuda_graph=False))
    model = engine.place(WideResNet((3, 32, 32), 10, depth=10)).train()
    alone, network = copy.deepcopy(model), engine.network(model)
    images = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        alone.load_state_dict(model.state_dict())
        found = network.features(images)
        with torch.autocast("cuda", torch.bfloat16):
            expected = alone.features(images).float()
        assert torch.equal(found, expected)
        network.zero_grad()
        alone.zero_grad()
        found.square().sum().backward()
        expected.square().sum().backward()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            if q.grad is not None:
                assert (p.grad - q.grad).norm() < 1e-2 * q.grad.norm()  # cuDNN may add in another order
                p.data.sub_(0.1 * p.grad / p.grad.norm())  # the second pass must not use the casts of the first


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_network_compiled_to_machine_code_has_the_models_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_threads", 1)  # no processes for so little
    engine = Engine(EngineOptions(device="cpu", precision="float32", compile=True))
    model, rows = engine.place(MLP((5,), 3, hidden=(4,))), torch.randn(6, 5)
    with torch.no_grad():
        torch.testing.assert_close(engine.network(model)(rows), model(rows))
