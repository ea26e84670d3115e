from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor

import mnar.run
import mnar.training.engine
from mnar.augment import Augment
from mnar.guidances import GUIDANCES, PRG
from mnar.learners import LEARNERS, FixMatch
from mnar.models import MLP, Classifier, SmallCNN, WideResNet
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.convolution import Convolution
from mnar.protocols import cadr, split
from mnar.recipes import configure
from mnar.run import checkpoint
from mnar.training.engine import Engine
from mnar.training.loader import Loader
from mnar.training.options import EngineOptions, TrainOptions
from mnar.training.trainer import Trainer
from mnar.types import DataSet, Task

needs_cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
PLAIN = EngineOptions(precision="float32", fused=False, compile=False, cuda_graph=False)
FAST = EngineOptions(precision="float32", fused=True, compile=True, cuda_graph=True)


@needs_cpu_only
def test_auto_is_plain_float32_without_a_gpu() -> None:
    engine = Engine(EngineOptions())
    assert engine.device.type == "cpu"
    assert engine.dtype == torch.float32
    assert (engine.fused, engine.compile, engine.cuda_graph) == (False, False, False)


@needs_cpu_only
@pytest.mark.parametrize(("option", "needs"), [("fused", "a CUDA device and Triton"), ("cuda_graph", "a CUDA device")])
def test_what_needs_a_gpu_is_refused_without_one_with_the_remedy(option: str, needs: str) -> None:
    wanted: dict[str, Any] = {option: True}
    with pytest.raises(ValueError, match=rf"engine\.{option} needs {needs}; choose engine\.{option}=false"):
        Engine(EngineOptions(**wanted))


@needs_cpu_only
def test_a_gpu_that_is_not_there_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"engine\.device is 'cuda:0', but .* choose auto or cpu"):
        Engine(EngineOptions(device="cuda:0"))


@pytest.mark.parametrize("device", ["abacus", "meta", "mps", "", "cpu cpu"])
def test_an_unknown_device_is_refused_with_the_choices(device: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown engine\.device '{device}'; choose auto, cpu or cuda"):
        Engine(EngineOptions(device=device))


def needs_a_number(device: torch.device) -> None:
    assert device.index is not None, "torch.cuda.set_device takes a device with a number alone"


@pytest.fixture
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine can be made as on a GPU; whatever it switches globally is put back."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", needs_a_number)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Imagined")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for name in ("benchmark", "deterministic", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))


@pytest.mark.usefixtures("as_if_on_a_gpu")
@pytest.mark.parametrize("installed", [True, False])
def test_our_kernels_are_chosen_on_a_gpu_only_where_triton_is(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(mnar.training.engine, "TRITON_IS_INSTALLED", installed)
    engine = Engine(EngineOptions())
    assert (engine.fused, engine.compile, engine.cuda_graph) == (installed, True, True)
    if not installed:
        with pytest.raises(ValueError, match=r"engine\.fused needs a CUDA device and Triton"):
            Engine(EngineOptions(fused=True))


@pytest.mark.usefixtures("as_if_on_a_gpu")
@pytest.mark.parametrize("capability", [(7, 0), (7, 5)])
def test_a_gpu_without_the_instructions_of_our_kernels_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(mnar.training.engine, "TRITON_IS_INSTALLED", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    engine = Engine(EngineOptions())
    is_new_enough = capability == (7, 5)
    assert (engine.fused, engine.fused_views) == (is_new_enough, is_new_enough)
    told = [str(warning.message) for warning in recwarn if "Triton" in str(warning.message)]
    assert len(told) == (0 if is_new_enough else 1)
    if told:
        assert "the GPU Imagined has compute capability 7.0" in told[0]
        assert "engine.fused=false" in told[0]


@pytest.mark.usefixtures("as_if_on_a_gpu")
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_engine_asks_the_libraries_for_repeatable_kernels(deterministic: bool) -> None:
    Engine(EngineOptions(fused=False, deterministic=deterministic))
    assert torch.backends.cudnn.deterministic == deterministic
    assert torch.backends.cudnn.benchmark != deterministic
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == deterministic


@pytest.mark.parametrize(
    ("model", "ours"),
    [(WideResNet((3, 16, 16), 10, depth=10, width=1), True), (MLP((5,), 3), False), (SmallCNN((1, 8, 8), 10), False)],
    ids=["wide_resnet", "mlp", "small_cnn"],
)
def test_a_model_without_our_layers_is_left_to_the_compiler(model: Classifier, ours: bool) -> None:
    for wanted in (False, True):
        engine = Engine(EngineOptions(device="cpu"))
        engine.fused = engine.fused_views = wanted  # as on a GPU
        engine.place(model)
        assert engine.fused == (wanted and ours)
        assert engine.fused_views == wanted, "the views do not depend on the model"
        layers = [m for m in model.modules() if isinstance(m, Convolution | BatchNormLeakyReLU)]
        assert {layer.fused for layer in layers} == ({wanted} if ours else set())


def test_bfloat16_ends_before_the_head_so_logits_do_not_tie() -> None:
    engine = Engine(EngineOptions(device="cpu", precision="bfloat16"))
    model = engine.place(SmallCNN((1, 8, 8), 10, width=4))
    images = torch.randn(6, 1, 8, 8)
    logits = engine.network(model)(images)
    assert logits.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    torch.testing.assert_close(logits, model(images), atol=0.05, rtol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        features = model.features(images)
    assert features.dtype == torch.bfloat16
    assert torch.equal(logits, model.head(features.float()))
    assert not torch.equal(logits, logits.bfloat16().float()), "finer than bfloat16"


@pytest.mark.parametrize("training", [True, False])
def test_a_model_in_mixed_precision_is_in_the_mode_it_was_in(training: bool) -> None:
    engine = Engine(EngineOptions(device="cpu", precision="bfloat16"))
    model = SmallCNN((1, 8, 8), 10, width=4).train(training)
    assert engine.inference(model).training == training
    assert {module.training for module in model.modules()} == {training}


def test_without_a_gpu_option_step_and_network_are_the_ones_given() -> None:
    engine = Engine(EngineOptions(device="cpu", precision="float32", fused=False, compile=False, cuda_graph=False))
    model, augment = SmallCNN((1, 8, 8), 10, width=4), Augment((0.5,), (0.25,))
    assert engine.network(model) is model
    assert engine.augmentation(augment) is augment
    assert engine.step(do_nothing) is do_nothing


def do_nothing() -> None:
    """A step that does nothing."""


def random_images() -> DataSet:
    generator = torch.Generator().manual_seed(0)
    train_x, test_x = (torch.randint(256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8) for n in (2000, 200))
    train_y, test_y = torch.arange(2000) % 10, torch.arange(200) % 10
    half_grey = (0.5, 0.5, 0.5)
    return DataSet(train_x, train_y, test_x, test_y, tuple("abcdefghij"), half_grey, (0.25, 0.25, 0.25))


def make_trainer(options: EngineOptions) -> Trainer:
    """FixMatch with PRG and WRN-10-1, the same for the same options."""
    torch.manual_seed(0)
    data, engine = random_images(), Engine(options)
    rows = split(data.train_y, cadr(10, 20), seed=0)
    # A tenth of the published learning rate: rounding then stays small for a while.
    train_options = TrainOptions(iterations=1000, batch_labeled=16, batch_unlabeled=64, lr=0.003)
    task = Task(10, len(rows.unlabeled_index), batch_labeled=16, batch_unlabeled=64)
    learner = FixMatch(task, PRG(task))
    loader = Loader(
        data,
        rows,
        engine.augmentation(Augment(data.mean, data.std)),
        views=learner.views,
        batch_labeled=16,
        batch_unlabeled=64,
        seed=0,
        device=engine.device,
    )
    model = WideResNet((3, 32, 32), 10, depth=10, width=1)
    return Trainer(model, learner, loader, data, train_options, engine)


def losses(trainer: Trainer, take_step: Callable[[], None], first: int, last: int) -> list[float]:
    """The loss of each step."""
    values = []
    for step in range(first, last):
        trainer.meters.reset()
        trainer.loader.seek(step)
        take_step()
        values.append(trainer.meters.means()["loss"])
    return values


def steps_without_a_sync(trainer: Trainer, take_step: Callable[[], None], first: int, last: int) -> None:
    """A host sync raises."""
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for step in range(first, last):
            trainer.loader.seek(step)
            take_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("options", [FAST, EngineOptions()], ids=["fast", "auto"])
def test_graphed_fused_compiled_training_stays_close_to_plain_eager(
    monkeypatch: pytest.MonkeyPatch, options: EngineOptions
) -> None:
    monkeypatch.setattr(inductor, "fallback_random", True)  # compiled code then draws as eager code does
    plain, fast = make_trainer(PLAIN), make_trainer(options)
    torch.manual_seed(1)
    expected = losses(plain, plain.engine.step(plain.step), 0, 20)
    torch.manual_seed(1)  # the same views again
    got = losses(fast, fast.engine.step(fast.step), 0, 20)
    assert got == pytest.approx(expected, rel=0.02)  # bfloat16 on a CPU: 0.0003
    assert int(fast.steps_done) == 20, "steps before, at and after the capture are all steps of the training"


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("options", [PLAIN, EngineOptions()], ids=["plain", "auto"])
def test_fifty_steps_make_no_host_sync(options: EngineOptions) -> None:
    trainer = make_trainer(options)
    take_step = trainer.engine.step(trainer.step)
    losses(trainer, take_step, 0, 5)  # kernels get compiled, the graph captured, the first rows drawn
    steps_without_a_sync(trainer, take_step, 5, 55)
    assert int(trainer.steps_done) == 55


@pytest.mark.gpu
@needs_cuda
def test_a_run_resumed_on_a_gpu_goes_on_as_it_would_have(tmp_path: Path) -> None:
    straight = make_trainer(EngineOptions())
    take_step = straight.engine.step(straight.step)
    losses(straight, take_step, 0, 10)
    checkpoint.save(tmp_path / "state.pt", straight.state_dict() | {"config": ""})
    expected = losses(straight, take_step, 10, 20)

    resumed = make_trainer(EngineOptions())
    resumed.load_state_dict(checkpoint.load(tmp_path / "state.pt")[0])
    got = losses(resumed, resumed.engine.step(resumed.step), 10, 20)
    assert got == pytest.approx(expected, rel=0.02)
    tracked, would_be = (trainer.learner.state_dict()["guidance.batches"] for trainer in (resumed, straight))
    assert tracked.item() == would_be.item() == 20


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("learner", ["fixmatch", "simmatch", "mixmatch"])
def test_two_deterministic_runs_end_with_the_same_weights_bit_for_bit(learner: str) -> None:
    settings = ["engine.deterministic=true", "train.optimizer=muon", "train.batch_unlabeled=448", "train.ema=0.9"]
    config = configure(dataset="cifar10", learner=learner, guidance="prg", iterations=100, settings=settings)
    data, ends = random_images(), []
    for _ in range(2):
        trainer = mnar.run.make_trainer(config, data, mnar.run.make_split(config, data))
        losses(trainer, trainer.engine.step(trainer.step), 0, 50)
        ends.append(trainer.average.model.state_dict())
    first, second = ends
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("learner", "guidance"),
    [(name, None) for name, learner in LEARNERS.items() if "images" in learner.suits]
    + [("fixmatch", name) for name in GUIDANCES],
)
def test_a_step_of_every_learner_and_guidance_is_one_graph_without_a_host_sync(
    learner: str, guidance: str | None
) -> None:
    settings = ["model.depth=10", "model.width=1", "train.batch_labeled=16", "engine.compile=false"]
    config = configure(dataset="cifar10", learner=learner, guidance=guidance, iterations=100, settings=settings)
    data = random_images()
    trainer = mnar.run.make_trainer(config, data, mnar.run.make_split(config, data))
    take_step = trainer.engine.step(trainer.step)
    assert all(math.isfinite(loss) for loss in losses(trainer, take_step, 0, 6))
    steps_without_a_sync(trainer, take_step, 6, 12)
    refresh = trainer.engine.step(trainer.learner.guidance.refresh)
    for _ in range(5 if trainer.learner.guidance.refresh_every else 0):  # some as they are, then as a graph
        refresh()
    steps_without_a_sync(trainer, take_step, 12, 15)
    assert math.isfinite(trainer.evaluate(15)["train"]["loss"])
    trainer.load_state_dict(trainer.state_dict())
