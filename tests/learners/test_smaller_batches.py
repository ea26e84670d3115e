"""Every learner with every guidance takes batches that are smaller than the largest one (`train.batch_stages`)."""

from __future__ import annotations

import copy

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.learners import Learner
from mnar.types import Batch
from tests.learners.test_contract import (
    BATCH_LABELED,
    BATCH_UNLABELED,
    NUM_CLASSES,
    every_pair,
    make_batch,
    make_learner,
    make_model,
)

SIZES = [(2, 4), (3, 7), (BATCH_LABELED, BATCH_UNLABELED)]  # labelled and unlabelled; ReMixMatch needs 4


def smaller_batch(learner: Learner, seed: int, num_labeled: int, num_unlabeled: int) -> Batch:
    batch = make_batch(learner, seed)
    return Batch(
        x=batch.x[:num_labeled],
        y=batch.y[:num_labeled],
        x_index=batch.x_index[:num_labeled],
        u={view: inputs[:num_unlabeled] for view, inputs in batch.u.items()},
        u_index=batch.u_index[:num_unlabeled],
    )


@every_pair
def test_batches_that_grow_have_a_finite_loss_and_as_many_pseudo_labels_as_samples(
    learner_name: str, guidance_name: str
) -> None:
    learner = make_learner(learner_name, guidance_name)
    model = make_model(learner)
    for seed, (num_labeled, num_unlabeled) in enumerate(size for size in SIZES for _ in range(3)):
        step = learner(model, smaller_batch(learner, seed, num_labeled, num_unlabeled))
        step.loss.backward()
        assert torch.isfinite(step.loss)
        assert all(torch.isfinite(value) for value in (step.logs | learner.guidance.logs()).values())
        assert learner.pseudo_labels[num_unlabeled:].tolist() == [-1] * (BATCH_UNLABELED - num_unlabeled)
        assert set(learner.pseudo_labels.tolist()) <= set(range(-1, NUM_CLASSES))
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@every_pair
def test_batches_that_grow_run_on_fake_tensors_so_nothing_reads_a_value_back(
    learner_name: str, guidance_name: str
) -> None:
    with FakeTensorMode():
        learner = make_learner(learner_name, guidance_name)
        model = make_model(learner)
        for num_labeled, num_unlabeled in SIZES:
            batch = smaller_batch(learner, 0, num_labeled, num_unlabeled)
            learner(model, batch._replace(u_index=torch.arange(num_unlabeled))).loss.backward()


@every_pair
def test_a_state_saved_in_a_smaller_stage_continues_bit_for_bit(learner_name: str, guidance_name: str) -> None:
    learner, resumed = make_learner(learner_name, guidance_name), make_learner(learner_name, guidance_name)
    model = make_model(learner).eval()  # the same function at every step
    if learner.teacher is not None:
        resumed.set_teacher(learner.teacher)
    small, *larger = SIZES
    for seed in range(3):
        learner(model, smaller_batch(learner, seed, *small))
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for seed, sizes in enumerate([small, *larger, *larger]):
        losses = []
        for each in (learner, resumed):
            batch = smaller_batch(each, seed, *sizes)
            torch.manual_seed(seed)  # for what a learner draws itself
            losses.append(each(model, batch).loss)
        assert torch.equal(*losses)
