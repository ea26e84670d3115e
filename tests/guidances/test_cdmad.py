"""CDMAD against forward passes of batch and blank image that are written out, and invariants for any input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.augment import Augment
from mnar.config import RunConfig
from mnar.guidances import PRG, Chain
from mnar.guidances.cdmad import CDMAD
from mnar.learners import LEARNERS, FixMatch, Learner, MeanTeacher
from mnar.models import MLP, Backbone, Classifier, SmallCNN, WideResNet
from mnar.models.batch_norm import statistics_kept
from mnar.models.rows import divided
from mnar.run import new_run, resume_run
from mnar.training.engine import AutocastModel, Engine, GraphedStep
from mnar.training.options import EngineOptions
from mnar.training.trainer import Interrupted
from mnar.types import Batch, Task
from tests.reference.cdmad import refined
from tests.support.equality import assert_same_run
from tests.support.watching import Watching

NUM_CLASSES, NUM_UNLABELED, BATCH_LABELED, BATCH_UNLABELED = 4, 30, 5, 12
TASK = Task(NUM_CLASSES, NUM_UNLABELED, None, BATCH_LABELED, BATCH_UNLABELED)
GREY, COLOUR = (1, 8, 8), (3, 8, 8)
MEANS, STDS = (0.3, 0.5, 0.6), (0.2, 0.1, 0.4)
WATCHING = sorted(name for name, part in LEARNERS.items() if "images" in part.suits and "watch" in part.hooks)


def prepared(shape: tuple[int, ...] = GREY, **options: Any) -> CDMAD:
    guidance = CDMAD(TASK, **{"colour": "white", "warmup": 0.0, **options})
    augment = Augment(MEANS[: shape[0]], STDS[: shape[0]])
    guidance.prepare(torch.zeros(3, *shape, dtype=torch.uint8), lambda x: augment(x, "id"))
    return guidance


def solid(level: float, shape: tuple[int, ...] = GREY) -> Tensor:
    """An image of one colour, of values in 0..1, normalised by hand: [1, channels, height, width]."""
    channels = [(level - mean) / std for mean, std in zip(MEANS, STDS, strict=True)][: shape[0]]
    return torch.tensor(channels).view(1, -1, 1, 1).expand(1, *shape).contiguous()


WHITE = solid(1.0)


def make_model(shape: tuple[int, ...] = GREY, seed: int = 0) -> SmallCNN:
    torch.manual_seed(seed)
    model = SmallCNN(shape, NUM_CLASSES, width=4)
    nn.init.normal_(model.head.bias, std=2)
    model(torch.randn(50, *shape))  # running statistics of its own
    return model


def make_batch(views: tuple[str, ...] = ("weak", "strong"), shape: tuple[int, ...] = GREY, seed: int = 0) -> Batch:
    torch.manual_seed(seed)
    return Batch(
        x=torch.randn(BATCH_LABELED, *shape),
        y=torch.randint(NUM_CLASSES, (BATCH_LABELED,)),
        x_index=torch.randint(4, (BATCH_LABELED,)),
        u={view: torch.randn(BATCH_UNLABELED, *shape) for view in views},
        u_index=torch.arange(BATCH_UNLABELED),
    )


def rectified_by(learner: Learner, network: nn.Module, batch: Batch) -> Tensor:
    """The pseudo-labels of one step."""
    made: list[Tensor] = []
    handle = learner.guidance.register_forward_hook(lambda module, args, q: made.append(q))
    learner(network, batch)
    handle.remove()
    (q,) = made
    return q


# The pseudo-labels


@pytest.mark.parametrize(("colour", "level"), [("white", 1.0), ("grey", 128 / 255), ("black", 0.0)])
@pytest.mark.parametrize("shape", [GREY, COLOUR], ids=["grey-scale", "colour"])
@pytest.mark.parametrize("blank", ["alone", "joint"])
def test_in_evaluation_mode_q_is_the_softmax_of_two_separate_forwards(
    colour: str, level: float, shape: tuple[int, ...], blank: str
) -> None:
    guidance, model = prepared(shape, colour=colour, blank=blank), make_model(shape).eval()
    batch = make_batch(shape=shape)
    q = rectified_by(FixMatch(TASK, guidance), guidance.watch(model), batch)
    with torch.no_grad():
        logits, (of_blank,) = model(batch.u["weak"]), model(solid(level, shape))
    assert_close(q, torch.tensor(refined(logits.tolist(), of_blank.tolist())), atol=1e-5, rtol=1e-4)
    assert (q - logits.softmax(1)).abs().max() > 0.1, "a bias worth removing"


@pytest.mark.parametrize("shape", [GREY, COLOUR], ids=["grey-scale", "colour"])
def test_the_default_blank_is_one_everywhere_after_normalisation(shape: tuple[int, ...]) -> None:
    guidance = CDMAD(TASK)
    augment = Augment(MEANS[: shape[0]], STDS[: shape[0]])
    guidance.prepare(torch.zeros(3, *shape, dtype=torch.uint8), lambda x: augment(x, "id"))
    assert guidance.blank_image is not None
    assert torch.equal(guidance.blank_image, torch.ones(1, *shape))


def test_in_training_mode_q_is_that_of_a_forward_of_the_batch_and_a_forward_of_the_blank_alone() -> None:
    guidance, model, batch = prepared(), make_model().train(), make_batch()
    literal, of_one = copy.deepcopy(model), copy.deepcopy(model)
    q = rectified_by(FixMatch(TASK, guidance), guidance.watch(model), batch)
    with torch.no_grad():
        logits = literal(torch.cat([batch.x, batch.u["weak"], batch.u["strong"]]))
        (of_blank,) = of_one(WHITE)  # batch norm has the statistics of this one image
    of_weak = logits[BATCH_LABELED : BATCH_LABELED + BATCH_UNLABELED]
    assert_close(guidance.bias, of_blank, atol=1e-5, rtol=1e-4)
    assert_close(q, torch.tensor(refined(of_weak.tolist(), of_blank.tolist())), atol=1e-5, rtol=1e-4)
    assert (q - of_weak.softmax(1)).abs().max() > 0.1, "a bias worth removing"


def test_in_training_mode_a_joint_q_is_that_of_one_forward_of_the_batch_and_the_blank() -> None:
    guidance, model, batch = prepared(blank="joint"), make_model().train(), make_batch()
    literal = copy.deepcopy(model)
    q = rectified_by(FixMatch(TASK, guidance), guidance.watch(model), batch)
    with torch.no_grad():
        logits = literal(torch.cat([batch.x, batch.u["weak"], batch.u["strong"], WHITE]))
    of_weak = logits[BATCH_LABELED : BATCH_LABELED + BATCH_UNLABELED]
    assert_close(guidance.bias, logits[-1], atol=1e-5, rtol=1e-4)
    assert_close(q, torch.tensor(refined(of_weak.tolist(), logits[-1].tolist())), atol=1e-5, rtol=1e-4)
    assert_close(dict(model.named_buffers()), dict(literal.named_buffers()))  # the running statistics


@pytest.mark.parametrize("progress", [0.3, 1.0])
def test_with_its_learner_options_the_loss_is_the_mean_soft_cross_entropy_of_two_strong_views(progress: float) -> None:
    guidance, model = CDMAD(TASK), make_model().train()
    guidance.prepare(torch.zeros(3, *GREY, dtype=torch.uint8), lambda x: x / 255)
    learner = FixMatch(TASK, guidance, **CDMAD.learner_options)
    learner.progress.fill_(progress)
    batch, literal, of_one = make_batch(learner.views), copy.deepcopy(model), copy.deepcopy(model)
    assert learner.views == ("weak", "strong", "strong2")
    loss = learner(guidance.watch(model), batch).loss
    with torch.no_grad():
        logits = literal(torch.cat([batch.x, *(batch.u[view] for view in learner.views)]))
        x, weak, *strong = logits.split([BATCH_LABELED, *[BATCH_UNLABELED] * 3])
        q = torch.tensor(refined(weak.tolist(), of_one(torch.ones(1, *GREY))[0].tolist()))
        labeled = -x.log_softmax(1)[range(BATCH_LABELED), batch.y].mean()
        unlabeled = sum(-(q * view.log_softmax(1)).sum(1).mean() for view in strong) / 2
    assert_close(loss.detach(), labeled + unlabeled, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("progress", "warmup", "is_over"),
    [(0.0, 0.2, False), (0.199, 0.2, False), (0.2, 0.2, True), (0.9, 0.2, True), (0.0, 0.0, True), (0.999, 1.0, False)],
)
def test_q_is_the_prediction_itself_during_the_warm_up_and_loses_the_bias_from_then_on(
    progress: float, warmup: float, is_over: bool
) -> None:
    torch.manual_seed(0)
    guidance, logits, bias = CDMAD(TASK, warmup=warmup), torch.randn(6, NUM_CLASSES), torch.tensor([1.0, -2.0, 0.5, 0])
    guidance.note_bias(bias[None])
    learner = FixMatch(TASK, guidance)
    learner.progress.fill_(progress)  # as the training loop does
    probs = logits.softmax(1)
    q = guidance(probs, torch.arange(6))
    if is_over:
        assert_close(q, torch.tensor(refined(logits.tolist(), bias.tolist())))
    else:
        assert torch.equal(q, probs)


def test_a_bias_that_is_the_heads_alone_is_removed_from_pseudo_labels_and_from_the_trained_network() -> None:
    fair, batch = make_model().eval(), make_batch()
    biased = copy.deepcopy(fair)
    with torch.no_grad():
        biased.head.bias.add_(torch.tensor([30.0, 0.0, -3.0, 1.0]))
        assert set(biased(batch.u["weak"]).argmax(1).tolist()) == {0}
    guidance = prepared()
    learner = FixMatch(TASK, guidance)
    of_both = [rectified_by(learner, guidance.watch(model), batch) for model in (fair, biased)]
    assert_close(*of_both, atol=1e-4, rtol=1e-3)

    for model in (fair, biased):
        bias = guidance.test_bias(model)
        assert bias is not None
        assert_close(bias, model(WHITE)[0].detach())
        with torch.no_grad():
            model.head.bias.sub_(bias)
        assert_close(model(WHITE), torch.zeros(1, NUM_CLASSES), atol=1e-5, rtol=0)  # no class is preferred
    assert_close(biased(batch.x), fair(batch.x), atol=1e-4, rtol=1e-4)


def test_probabilities_of_exactly_0_and_1_give_finite_distributions_that_a_bias_can_turn() -> None:
    guidance, one_hot = CDMAD(TASK, warmup=0.0), torch.eye(NUM_CLASSES)
    assert_close(guidance(one_hot, torch.arange(4)), one_hot, atol=1e-6, rtol=0)
    guidance.note_bias(torch.tensor([[200.0, 0.0, 0.0, -200.0]]))
    q = guidance(one_hot, torch.arange(4))
    assert torch.isfinite(q).all()
    assert_close(q.sum(1), torch.ones(4))
    assert q.argmax(1).tolist() == [3, 3, 3, 3]


def test_without_a_watched_network_it_leaves_a_pseudo_label_as_it_is() -> None:
    probs = torch.randn(6, NUM_CLASSES).softmax(1)
    assert_close(CDMAD(TASK, warmup=0.0)(probs, torch.arange(6)), probs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_handled_in_float32_without_gradient(dtype: torch.dtype) -> None:
    guidance = CDMAD(TASK, warmup=0.0)
    guidance.note_bias(torch.tensor([[1.0, -2.0, 0.5, 0.0]]))
    probs = torch.randn(6, NUM_CLASSES).softmax(1).to(dtype)
    q = guidance(probs.clone().requires_grad_(), torch.arange(6, dtype=torch.int32))
    assert q.dtype == torch.float32
    assert not q.requires_grad
    assert torch.equal(q, guidance(probs.float(), torch.arange(6)))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_numbers_are_no_bias(broken: float) -> None:
    guidance = CDMAD(TASK)
    guidance.note_bias(torch.tensor([[1.0, broken, 2.0, 3.0]]))
    assert guidance.bias.tolist() == [1, 0, 2, 3]


def test_several_processes_average_what_they_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it always measures the same."""
    other = torch.tensor([[2.0, 0.0, 0.0, 4.0]])
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda local: torch.cat([local, other]))
    guidance = CDMAD(TASK)
    guidance.note_bias(torch.tensor([[4.0, 2.0, 0.0, 0.0]]))
    assert guidance.bias.tolist() == [3, 1, 0, 2]


def test_the_log_is_how_far_apart_the_blank_puts_the_classes() -> None:
    guidance = CDMAD(TASK)
    assert guidance.logs()["bias_range"] == 0
    guidance.note_bias(torch.tensor([[1.0, -2.0, 0.5, 0.0]]))
    assert guidance.logs()["bias_range"] == 3


# The watched network


@pytest.mark.parametrize("blank", ["alone", "joint"])
def test_a_watched_network_gives_the_bare_models_numbers_and_gradients_in_evaluation_mode(blank: str) -> None:
    model, images = make_model().eval(), torch.randn(6, *GREY)
    model.heads.update({"projection": nn.Linear(model.num_features, 3)})
    network: Any = prepared(blank=blank).watch(model)
    assert not network.training
    features = network.features(images)
    assert_close(features, model.features(images))
    assert_close(network(images), model(images))
    assert network.heads["projection"](features).shape == (6, 3)
    assert network.num_features == model.num_features
    assert network.layers is model.layers

    gradients = []
    for network_or_model in (network, model):
        model.zero_grad()
        network_or_model(images).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)


NETWORKS = {
    "BatchNorm2d": partial(SmallCNN, width=4, dropout=0.5),
    "BatchNormLeakyReLU": partial(WideResNet, depth=10, width=1, momentum=0.1),
    "group norm": partial(SmallCNN, width=4, norm="group"),
    "no norm": partial(MLP, hidden=(8,)),
}


@pytest.mark.parametrize("takes_rows", [False, True])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_alone_in_training_mode_features_gradients_and_running_statistics_are_the_bare_models_bit_for_bit(
    make: Callable[..., Classifier], takes_rows: bool
) -> None:
    torch.manual_seed(0)
    guidance, model, images = prepared(), make(GREY, NUM_CLASSES).train(), torch.randn(6, *GREY)
    bare = copy.deepcopy(model)
    x = divided(images, 4) if takes_rows else images
    for _ in range(3):
        of_both = []
        for network in (guidance.watch(model), bare):
            torch.manual_seed(1)  # the same dropout: the batch draws before the blank image does
            of_both.append(network(x)[:4])
            of_both[-1].square().sum().backward()
        assert torch.equal(*of_both)
    assert (guidance.bias != 0).all()
    assert not guidance.bias.requires_grad
    buffers = dict(bare.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    for (name, ours), theirs in zip(model.named_parameters(), bare.parameters(), strict=True):
        assert ours.grad is not None, name
        assert theirs.grad is not None, name
        assert torch.equal(ours.grad, theirs.grad), name


@pytest.mark.parametrize("make", [NETWORKS["group norm"], NETWORKS["no norm"]], ids=["group norm", "no norm"])
def test_without_batch_norm_alone_and_joint_measure_the_same_bias(make: Callable[..., Classifier]) -> None:
    torch.manual_seed(0)
    model, images = make(GREY, NUM_CLASSES).train(), torch.randn(6, *GREY)
    alone, joint = prepared(blank="alone"), prepared(blank="joint")
    for guidance in (alone, joint):
        guidance.watch(model)(images)
    assert_close(alone.bias, joint.bias)


def test_with_batch_norm_the_bias_of_a_blank_alone_depends_neither_on_the_batch_nor_on_the_brightness() -> None:
    """Without a bias, the first convolution is linear, and batch norm then divides by the scale of its output."""
    model, alone, joint = make_model().train(), prepared(), prepared(blank="joint")
    of_batches = []
    for guidance in (alone, joint, prepared(colour="ones"), prepared(colour="black")):
        for seed in range(2):
            torch.manual_seed(seed)
            guidance.watch(model)(torch.randn(6, *GREY))
            of_batches.append(guidance.bias.clone())
    of_alone, again, of_joint, other_joint, of_ones, _, of_black, _ = of_batches
    assert torch.equal(of_alone, again)
    assert not torch.allclose(of_joint, other_joint, atol=1e-2)
    assert_close(of_ones, of_alone, atol=1e-2, rtol=0)  # 1.0 and 3.5 after normalisation
    assert not torch.allclose(of_black, of_alone, atol=0.1), "-1.5 after normalisation: the sign matters"


def test_a_network_that_cannot_normalise_a_single_image_is_refused_with_the_remedy() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8))
    model, images = Backbone(backbone, GREY, NUM_CLASSES).train(), torch.randn(6, *GREY)
    with pytest.raises(ValueError, match=r"one value per channel.*--set guidance\.blank=joint"):
        prepared().watch(model)(images)
    assert {norm.track_running_stats for norm in model.modules() if isinstance(norm, nn.BatchNorm1d)} == {True}
    joint = prepared(blank="joint")
    joint.watch(model)(images)
    assert (joint.bias != 0).all()


def test_an_overflow_of_the_blank_reaches_neither_running_statistics_nor_pseudo_labels() -> None:
    guidance, model = prepared(), make_model().train()
    assert guidance.blank_image is not None
    guidance.blank_image.fill_(math.inf)
    q = rectified_by(FixMatch(TASK, guidance), guidance.watch(model), make_batch())
    assert torch.isfinite(q).all()
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())


def test_joint_in_training_mode_the_gradients_are_those_of_the_batch_and_none_of_the_blanks_logits() -> None:
    guidance, model, images = prepared(blank="joint"), make_model().train(), torch.randn(6, *GREY)
    literal = copy.deepcopy(model)
    guidance.watch(model)(images).square().sum().backward()
    literal(torch.cat([images, WHITE]))[:-1].square().sum().backward()
    assert not guidance.bias.requires_grad
    for (name, ours), theirs in zip(model.named_parameters(), literal.parameters(), strict=True):
        assert ours.grad is not None, name
        assert theirs.grad is not None, name
        assert ours.grad.abs().sum() > 0, name
        assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_what_neither_a_watched_network_nor_its_model_has_is_missing_by_its_name() -> None:
    with pytest.raises(AttributeError, match="wings"):
        _ = prepared().watch(make_model()).wings


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_batch_keeps_its_memory_format(memory_format: torch.memory_format) -> None:
    seen: list[Tensor] = []

    class Seeing(SmallCNN):
        def features(self, x: Tensor) -> Tensor:
            seen.append(x)
            return super().features(x)

    for blank, sizes in {"alone": [6, 1], "joint": [7]}.items():
        network = prepared(COLOUR, blank=blank).watch(Seeing(COLOUR, NUM_CLASSES, width=4))
        seen.clear()
        network(torch.randn(6, *COLOUR).contiguous(memory_format=memory_format))
        assert [x.shape for x in seen] == [(size, *COLOUR) for size in sizes]
        assert seen[0].is_contiguous(memory_format=memory_format)


def test_statistics_are_kept_through_a_watched_network_of_the_engine() -> None:
    model = make_model()
    network = prepared().watch(AutocastModel(model, torch.device("cpu"), torch.bfloat16))
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(("mean", "var"))}
    assert before
    with statistics_kept(network):
        network(torch.randn(6, *GREY))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers() if name in before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_in_a_cuda_graph_statistics_and_bias_are_those_of_separate_forwards() -> None:
    torch.manual_seed(0)
    shape = (3, 32, 32)
    engine = Engine(EngineOptions(compile=False))
    model = engine.place(WideResNet(shape, NUM_CLASSES, depth=10)).train()
    bare, guidance = copy.deepcopy(model), prepared(shape).to(engine.device)
    network, bare_network = guidance.watch(engine.network(model)), engine.network(bare)
    images = torch.randn(32, *shape, device=engine.device).contiguous(memory_format=torch.channels_last)
    step = GraphedStep(torch.no_grad()(lambda: network(images)))
    for _ in range(GraphedStep.EAGER_STEPS + 2):
        step()
        with torch.no_grad():
            bare_network(images)
    assert_close(dict(model.named_buffers()), dict(bare.named_buffers()))
    with torch.no_grad(), statistics_kept(bare):
        assert_close(guidance.bias, bare_network(guidance.blank_image)[0], atol=1e-2, rtol=1e-2)


def test_a_network_under_autocast_measures_in_float32() -> None:
    guidance, model = prepared(), make_model().eval()
    network = AutocastModel(model, torch.device("cpu"), torch.bfloat16)
    guidance.watch(network)(torch.randn(6, *GREY))
    assert guidance.bias.dtype == torch.float32
    assert_close(guidance.bias, model(WHITE)[0].detach(), atol=0.1, rtol=0.05)
    bias = guidance.test_bias(network)
    assert bias is not None
    assert bias.dtype == torch.float32
    assert bias.shape == (NUM_CLASSES,)


def test_watching_changes_no_name_of_a_state_dict() -> None:
    guidance, model = prepared(), make_model()
    names = set(model.state_dict())
    learner = FixMatch(TASK, guidance)
    network = guidance.watch(model)
    learner(network, make_batch())
    assert set(learner.state_dict()) == {"guidance.bias"}
    assert list(learner.parameters()) == []
    assert set(model.state_dict()) == names
    assert set(network.state_dict()) == {f"network.{name}" for name in names}


# With the learners


def make_learner(name: str, blank: str) -> tuple[Learner, nn.Module]:
    """As the assembler makes it: a watched network, and a watched teacher where the learner has one."""
    task = TASK._replace(labeled_targets=torch.tensor([0, 0, 1, 2, 3]))
    guidance = prepared(blank=blank)
    learner = LEARNERS[name](task, guidance)
    learner.progress.fill_(0.5)
    student, teacher = make_model(seed=1), make_model(seed=2)
    for model in (student, teacher):
        model.heads.update(learner.heads(model))
    learner.prepare(student)
    if learner.uses_teacher:
        learner.set_teacher(guidance.watch(teacher))
    return learner, guidance.watch(student)


@pytest.mark.parametrize("blank", ["alone", "joint"])
@pytest.mark.parametrize("name", WATCHING)
def test_every_learner_of_images_trains_all_parameters_of_a_watched_network(name: str, blank: str) -> None:
    learner, network = make_learner(name, blank)
    addresses = {of: buffer.data_ptr() for of, buffer in learner.named_buffers()}
    for seed in range(3):
        step = learner(network, make_batch(learner.views, seed=seed))
        assert torch.isfinite(step.loss)
    step.loss.backward()
    for of, parameter in network.named_parameters():
        assert parameter.grad is not None, of
        assert torch.isfinite(parameter.grad).all(), of
        assert parameter.grad.abs().sum() > 0, of
    guidance = learner.guidance
    assert isinstance(guidance, CDMAD)
    assert (guidance.bias != 0).all()
    assert {of: buffer.data_ptr() for of, buffer in learner.named_buffers()} == addresses, "changed in place"


@pytest.mark.parametrize("blank", ["alone", "joint"])
@pytest.mark.parametrize("name", WATCHING)
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(name: str, blank: str) -> None:
    with FakeTensorMode():
        learner, network = make_learner(name, blank)
        for _ in range(2):
            step = learner(network, make_batch(learner.views))
            step.loss.backward()
            assert step.loss.shape == learner.guidance.logs()["bias_range"].shape == ()


def test_mean_teacher_takes_the_teachers_bias_off_the_teachers_prediction() -> None:
    guidance, student, teacher = prepared(), make_model(seed=1).eval(), make_model(seed=2).eval()
    learner, batch = MeanTeacher(TASK, guidance), make_batch(("weak", "weak2"))
    learner.set_teacher(guidance.watch(teacher))
    q = rectified_by(learner, guidance.watch(student), batch)
    with torch.no_grad():
        logits, (of_blank,) = teacher(batch.u["weak2"]), teacher(WHITE)
    assert_close(q, torch.tensor(refined(logits.tolist(), of_blank.tolist())), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(LEARNERS) - set(WATCHING)))
def test_a_learner_whose_network_cannot_be_watched_refuses_it_by_its_hook(name: str) -> None:
    with pytest.raises(ValueError, match=r"\(watch\)"):
        LEARNERS[name](TASK, prepared())


@pytest.mark.parametrize("progress", [0.0, 0.5])
@pytest.mark.parametrize("blank", ["alone", "joint"])
def test_in_a_chain_prg_sees_and_tracks_what_cdmad_returns(blank: str, progress: float) -> None:
    model, batch = make_model(), make_batch()
    first, alone = (prepared(blank=blank, warmup=0.2) for _ in range(2))
    chain, prg = Chain(first, PRG(TASK)), PRG(TASK)
    of_chain, of_one = FixMatch(TASK, chain), FixMatch(TASK, alone)
    for learner in (of_chain, of_one):
        learner.progress.fill_(progress)
    q = rectified_by(of_chain, chain.watch(model), batch)
    expected = prg(rectified_by(of_one, alone.watch(model), batch), batch.u_index)
    assert torch.equal(q, expected)
    assert torch.equal(chain.test_bias(model.eval()), alone.test_bias(model))  # type: ignore[arg-type]


# State


def test_state_dict_into_a_fresh_guidance_continues_bit_for_bit() -> None:
    guidance, resumed = prepared(), prepared()
    guidance.watch(make_model())(torch.randn(6, *GREY))
    resumed.load_state_dict(copy.deepcopy(guidance.state_dict()))
    probs = torch.randn(6, NUM_CLASSES).softmax(1)
    q = resumed(probs, torch.arange(6))
    assert torch.equal(q, guidance(probs, torch.arange(6)))
    assert not torch.equal(q, prepared()(probs, torch.arange(6)))


@pytest.mark.parametrize("blank", ["alone", "joint"])
def test_with_dropout_a_step_from_a_saved_random_state_repeats_bit_for_bit(blank: str) -> None:
    torch.manual_seed(0)
    guidance, model = prepared(blank=blank), SmallCNN(GREY, NUM_CLASSES, width=4, dropout=0.3)
    learner, network = FixMatch(TASK, guidance), guidance.watch(model)
    batches = [make_batch(seed=seed) for seed in range(2)]
    learner(network, batches[0])
    saved = torch.get_rng_state(), copy.deepcopy(model.state_dict()), copy.deepcopy(learner.state_dict())
    losses, biases = [], []
    for _ in range(2):
        torch.set_rng_state(saved[0])
        model.load_state_dict(saved[1])
        learner.load_state_dict(saved[2])
        losses.append(learner(network, batches[1]).loss.detach())
        biases.append(guidance.bias.clone())
    assert torch.equal(*losses)
    assert torch.equal(*biases)


RUNS = [("guidance.blank=alone",), ("guidance.blank=joint",), ("model.dropout=0.3",), ("learner.weak_gradient=false",)]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("settings", RUNS, ids=" ".join)
def test_a_run_cut_off_after_the_warm_up_and_resumed_equals_one_that_was_not(
    settings: tuple[str, ...], tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    released = (f"learner.{option}={value}" for option, value in CDMAD.learner_options.items())
    names = ("learner.name=fixmatch", "guidance.name=cdmad")
    config = tiny(*names, *released, *settings, "train.eval_every=5", iterations=12)
    new_run(config, tmp_path / "finished")
    with pytest.raises(Interrupted, match="stopped at step 6 of 12"):
        new_run(config, tmp_path / "cut_off", Watching(signal_at=5))
    resume_run(tmp_path / "cut_off")
    assert_same_run(tmp_path / "cut_off", tmp_path / "finished")


def test_the_blank_moves_with_the_guidance_and_is_no_state() -> None:
    guidance = prepared(COLOUR)
    assert guidance.blank_image is not None
    assert_close(guidance.blank_image, solid(1.0, COLOUR))
    assert set(guidance.state_dict()) == {"bias"}
    guidance.to("meta")
    assert guidance.blank_image.is_meta


# Bad input


@pytest.mark.parametrize("colour", ["red", "White", "", 1.0, None])
def test_an_unknown_colour_is_an_error_that_names_it_and_the_known_ones(colour: Any) -> None:
    with pytest.raises(ValueError, match=rf"colour is {colour!r}; choose from \['ones', 'white', 'grey', 'black'\]"):
        CDMAD(TASK, colour=colour)


@pytest.mark.parametrize("blank", ["both", "Alone", "", True, None])
def test_an_unknown_forward_of_the_blank_is_an_error_that_names_it_and_the_known_ones(blank: Any) -> None:
    with pytest.raises(ValueError, match=rf"blank is {blank!r}; choose from \['alone', 'joint'\]"):
        CDMAD(TASK, blank=blank)


@pytest.mark.parametrize("warmup", [-0.1, 1.5, math.nan, math.inf])
def test_a_warm_up_that_is_no_share_is_an_error_that_names_it(warmup: float) -> None:
    with pytest.raises(ValueError, match=rf"warmup is {warmup}; expected a number from 0 to 1, e\.g\. 0\.2"):
        CDMAD(TASK, warmup=warmup)


@pytest.mark.parametrize(
    ("samples", "named"),
    [
        (torch.zeros(3, 7), r"torch.float32 \[3, 7\]"),
        (torch.zeros(3, 7, dtype=torch.uint8), r"torch.uint8 \[3, 7\]"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"torch.uint8 \[3, 8, 8\]"),
        (torch.zeros(3, 1, 8, 8), r"torch.float32 \[3, 1, 8, 8\]"),
    ],
    ids=["table", "table of bytes", "images without channels", "images of floats"],
)
def test_what_it_cannot_make_a_blank_of_is_refused_with_what_to_choose_instead(samples: Tensor, named: str) -> None:
    guidance = CDMAD(TASK)
    with pytest.raises(ValueError, match=rf"{named}.*\[n, channels, height, width\].*--guidance prg"):
        guidance.prepare(samples, lambda x: x)


def test_before_it_is_prepared_it_watches_nothing_and_knows_no_bias() -> None:
    guidance, model = CDMAD(TASK), make_model()
    with pytest.raises(ValueError, match=r"no blank image yet; call guidance.prepare"):
        guidance.watch(model)
    assert guidance.test_bias(model) is None


def test_a_bad_call_is_refused() -> None:
    guidance = CDMAD(TASK)
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        guidance(torch.full((1, NUM_CLASSES), 0.25), torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        guidance(torch.full((1, 3), 1 / 3), torch.tensor([0]))
