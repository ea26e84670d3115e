"""What every learner promises with every guidance: a new one of either is tested by its table line."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS, Learner
from mnar.models import SmallCNN
from mnar.types import Batch, Task

NUM_CLASSES, NUM_UNLABELED, BATCH_LABELED, BATCH_UNLABELED = 4, 30, 5, 12

every_pair = pytest.mark.parametrize(("learner_name", "guidance_name"), list(product(LEARNERS, GUIDANCES)))


def make_learner(learner_name: str, guidance_name: str) -> Learner:
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])
    task = Task(NUM_CLASSES, NUM_UNLABELED, targets, BATCH_LABELED, BATCH_UNLABELED)
    return LEARNERS[learner_name](task, GUIDANCES[guidance_name](task))


def make_model() -> nn.Module:
    return SmallCNN((1, 8, 8), NUM_CLASSES, width=4)


class Views(dict[str, Tensor]):
    """Views that remember which of them were looked at."""

    def __init__(self, views: dict[str, Tensor]) -> None:
        super().__init__(views)
        self.looked_at: set[str] = set()

    def __getitem__(self, view: str) -> Tensor:
        self.looked_at.add(view)
        return super().__getitem__(view)


def make_batch(views: tuple[str, ...], seed: int = 0) -> Batch:
    torch.manual_seed(seed)
    return Batch(
        x=torch.randn(BATCH_LABELED, 1, 8, 8),
        y=torch.randint(NUM_CLASSES, (BATCH_LABELED,)),
        x_index=torch.randint(8, (BATCH_LABELED,)),
        u=Views({view: torch.randn(BATCH_UNLABELED, 1, 8, 8) for view in views}),
        u_index=torch.randperm(NUM_UNLABELED)[:BATCH_UNLABELED],
    )


@every_pair
def test_loss_is_finite_and_gradients_reach_every_parameter(learner_name: str, guidance_name: str) -> None:
    learner, model = make_learner(learner_name, guidance_name), make_model()
    for seed in range(3):
        step = learner(model, make_batch(learner.views, seed))
        assert step.loss.ndim == 0
        assert torch.isfinite(step.loss)
    step.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_pair
def test_logs_are_single_numbers_without_gradient(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    step = learner(make_model(), make_batch(learner.views))
    assert "loss" not in step.logs, "the loop logs that"
    for name, value in (step.logs | learner.guidance.logs()).items():
        assert value.ndim == 0, name
        assert not value.requires_grad, name
        assert torch.isfinite(value), name


@every_pair
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(learner_name: str, guidance_name: str) -> None:
    with FakeTensorMode():  # without a ShapeEnv: .item(), nonzero, bincount and boolean masks raise
        learner, model = make_learner(learner_name, guidance_name), make_model()
        index = torch.arange(BATCH_UNLABELED)
        for _ in range(2):
            batch = make_batch(learner.views)._replace(u_index=index)
            step = learner(model, batch)
            step.loss.backward()
            logs = {"loss": step.loss} | step.logs | learner.guidance.logs()
            assert {value.shape for value in logs.values()} == {torch.Size([])}


def test_fake_tensors_would_notice_a_value_read_back() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.rand(3).sum().item()


@every_pair
def test_a_learner_has_no_parameters_and_changes_its_buffers_in_place(learner_name: str, guidance_name: str) -> None:
    learner, model = make_learner(learner_name, guidance_name), make_model()
    assert list(learner.parameters()) == []
    addresses = {name: buffer.data_ptr() for name, buffer in learner.named_buffers()}
    for seed in range(3):
        learner(model, make_batch(learner.views, seed))
    assert {name: buffer.data_ptr() for name, buffer in learner.named_buffers()} == addresses


@every_pair
def test_state_dict_into_a_fresh_learner_continues_bit_for_bit(learner_name: str, guidance_name: str) -> None:
    learner, resumed = make_learner(learner_name, guidance_name), make_learner(learner_name, guidance_name)
    model = make_model().eval()  # the same function at every step
    for seed in range(4):
        learner(model, make_batch(learner.views, seed))
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for seed in range(4, 8):
        batch = make_batch(learner.views, seed)
        step, again = learner(model, batch), resumed(model, batch)
        assert torch.equal(step.loss, again.loss)
        assert {name: value.item() for name, value in step.logs.items()} == {
            name: value.item() for name, value in again.logs.items()
        }
        assert torch.equal(learner.pseudo_labels, resumed.pseudo_labels)


@every_pair
def test_a_learner_looks_at_the_views_it_names_and_at_no_other(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    batch = make_batch((*learner.views, "extra"))
    learner(make_model(), batch)
    assert isinstance(batch.u, Views)
    assert batch.u.looked_at == set(learner.views)


@every_pair
def test_pseudo_labels_are_classes_or_none(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    assert learner.pseudo_labels.tolist() == [-1] * BATCH_UNLABELED, "before the first batch"
    learner(make_model(), make_batch(learner.views))
    assert learner.pseudo_labels.shape == (BATCH_UNLABELED,)
    assert set(learner.pseudo_labels.tolist()) <= set(range(-1, NUM_CLASSES))


@every_pair
def test_a_learner_leaves_the_batch_as_it_was(learner_name: str, guidance_name: str) -> None:
    learner = make_learner(learner_name, guidance_name)
    batch, same = make_batch(learner.views), make_batch(learner.views)
    learner(make_model(), batch)
    assert torch.equal(batch.x, same.x)
    assert torch.equal(batch.u_index, same.u_index)
    for view in learner.views:
        assert torch.equal(batch.u[view], same.u[view])
