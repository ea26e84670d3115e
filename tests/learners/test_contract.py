"""What every learner promises with every guidance: a new one of either is tested by its table line."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mnar.guidances import GUIDANCES, class_of
from mnar.learners import LEARNERS, Learner
from mnar.models import Classifier, EncoderMLP, SmallCNN
from mnar.types import Batch, Task

NUM_CLASSES, NUM_UNLABELED, BATCH_LABELED, BATCH_UNLABELED = 4, 30, 5, 12
NUM_FEATURES = 6  # of a table


def serves(learner_name: str, guidance_name: str) -> bool:
    """Whether the learner calls all that the guidance acts by; tests/guidances/test_hooks.py has the others."""
    return class_of(GUIDANCES[guidance_name]).needs <= LEARNERS[learner_name].hooks


every_pair = pytest.mark.parametrize(
    ("learner_name", "guidance_name"), [pair for pair in product(LEARNERS, GUIDANCES) if serves(*pair)]
)


def make_learner(learner_name: str, guidance_name: str) -> Learner:
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])
    task = Task(NUM_CLASSES, NUM_UNLABELED, targets, BATCH_LABELED, BATCH_UNLABELED)
    learner = LEARNERS[learner_name](task, GUIDANCES[guidance_name](task))
    learner.progress.fill_(0.5)  # past the start of every ramp
    return learner


def make_network(learner: Learner) -> Classifier:
    model: Classifier
    if "images" in learner.suits:
        model = SmallCNN((1, 8, 8), NUM_CLASSES, width=4, dropout=0.1)
    else:
        model = EncoderMLP((NUM_FEATURES,), NUM_CLASSES, hidden=(5,))
    model.heads.update(learner.heads(model))
    return model


def make_model(learner: Learner) -> Classifier:
    """As the assembler makes it: prepared, and with a teacher where the learner has one."""
    model = make_network(learner)
    learner.prepare(model)
    if learner.uses_teacher:
        learner.set_teacher(make_network(learner).eval())
    return model


class Views(dict[str, Tensor]):
    """Views that remember which of them were looked at."""

    def __init__(self, views: dict[str, Tensor]) -> None:
        super().__init__(views)
        self.looked_at: set[str] = set()

    def __getitem__(self, view: str) -> Tensor:
        self.looked_at.add(view)
        return super().__getitem__(view)


def make_batch(learner: Learner, seed: int = 0, extra_views: tuple[str, ...] = ()) -> Batch:
    torch.manual_seed(seed)
    shape = (1, 8, 8) if "images" in learner.suits else (NUM_FEATURES,)
    return Batch(
        x=torch.randn(BATCH_LABELED, *shape),
        y=torch.randint(NUM_CLASSES, (BATCH_LABELED,)),
        x_index=torch.randint(8, (BATCH_LABELED,)),
        u=Views({view: torch.randn(BATCH_UNLABELED, *shape) for view in (*learner.views, *extra_views)}),
        u_index=torch.randperm(NUM_UNLABELED)[:BATCH_UNLABELED],
    )


@every_pair
def test_loss_is_finite_and_gradients_reach_every_parameter_that_is_trained(
    learner_name: str, guidance_name: str
) -> None:
    learner = make_learner(learner_name, guidance_name)
    model = make_model(learner)
    for seed in range(3):
        step = learner(model, make_batch(learner, seed))
        assert step.loss.ndim == 0
        assert torch.isfinite(step.loss)
    step.loss.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not learner.uses_labels:  # a first stage, which trains the encoder and not the classifier
        trained = {name: parameter for name, parameter in trained.items() if name.startswith(("encoder.", "heads."))}
    assert trained
    for name, parameter in trained.items():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_pair
def test_logs_are_single_numbers_without_gradient(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    step = learner(make_model(learner), make_batch(learner))
    assert "loss" not in step.logs, "the loop logs that"
    for name, value in (step.logs | learner.guidance.logs()).items():
        assert value.ndim == 0, name
        assert not value.requires_grad, name
        assert torch.isfinite(value), name


@every_pair
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(learner_name: str, guidance_name: str) -> None:
    with FakeTensorMode():  # without a ShapeEnv: .item(), nonzero, bincount and boolean masks raise
        learner = make_learner(learner_name, guidance_name)
        model = make_model(learner)
        index = torch.arange(BATCH_UNLABELED)
        for _ in range(2):
            batch = make_batch(learner)._replace(u_index=index)
            step = learner(model, batch)
            step.loss.backward()
            logs = {"loss": step.loss} | step.logs | learner.guidance.logs()
            assert {value.shape for value in logs.values()} == {torch.Size([])}


def test_fake_tensors_would_notice_a_value_read_back() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.rand(3).sum().item()


@every_pair
def test_a_learner_has_no_parameters_and_changes_its_buffers_in_place(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    model = make_model(learner)
    assert list(learner.parameters()) == []
    addresses = {name: buffer.data_ptr() for name, buffer in learner.named_buffers()}
    for seed in range(3):
        learner(model, make_batch(learner, seed))
    assert {name: buffer.data_ptr() for name, buffer in learner.named_buffers()} == addresses


@every_pair
def test_state_dict_into_a_fresh_learner_continues_bit_for_bit(learner_name: str, guidance_name: str) -> None:
    learner, resumed = make_learner(learner_name, guidance_name), make_learner(learner_name, guidance_name)
    model = make_model(learner).eval()  # the same function at every step
    if learner.teacher is not None:
        resumed.set_teacher(learner.teacher)
    for seed in range(4):
        learner(model, make_batch(learner, seed))
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for seed in range(4, 8):
        batch = make_batch(learner, seed)
        torch.manual_seed(seed)  # for what a learner draws itself
        step = learner(model, batch)
        torch.manual_seed(seed)
        again = resumed(model, batch)
        assert torch.equal(step.loss, again.loss)
        assert {name: value.item() for name, value in step.logs.items()} == {
            name: value.item() for name, value in again.logs.items()
        }
        assert torch.equal(learner.pseudo_labels, resumed.pseudo_labels)


@every_pair
def test_a_learner_looks_at_the_views_it_names_and_at_no_other(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    batch = make_batch(learner, extra_views=("extra",))
    learner(make_model(learner), batch)
    assert isinstance(batch.u, Views)
    assert batch.u.looked_at == set(learner.views)


@every_pair
def test_pseudo_labels_are_classes_or_none(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    assert learner.pseudo_labels.tolist() == [-1] * BATCH_UNLABELED, "before the first batch"
    learner(make_model(learner), make_batch(learner))
    assert learner.pseudo_labels.shape == (BATCH_UNLABELED,)
    assert set(learner.pseudo_labels.tolist()) <= set(range(-1, NUM_CLASSES))


@every_pair
def test_a_learner_leaves_the_batch_as_it_was(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    batch, same = make_batch(learner), make_batch(learner)
    learner(make_model(learner), batch)
    assert torch.equal(batch.x, same.x)
    assert torch.equal(batch.u_index, same.u_index)
    for view in learner.views:
        assert torch.equal(batch.u[view], same.u[view])
