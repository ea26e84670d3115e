from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mnar.guidances import NoGuidance
from mnar.learners.comatch import CoMatch
from mnar.models import MLP
from mnar.types import Batch, Task
from tests.reference.comatch import LiteralCoMatch
from tests.support.stand_ins import RecordedWithHeads, Told, vector_batch

NUM_CLASSES, NUM_UNLABELED, BATCH_LABELED, BATCH_UNLABELED, DIM = 3, 20, 3, 6, 4
TASK = Task(NUM_CLASSES, NUM_UNLABELED, None, BATCH_LABELED, BATCH_UNLABELED)
OPTIONS: dict[str, Any] = {
    "threshold": 0.8,
    "graph_threshold": 0.6,
    "alpha": 0.7,
    "temperature": 0.3,
    "unlabeled_weight": 0.5,
    "contrastive_weight": 2.0,
}


def make_batch(seed: int = 0, num_unlabeled: int = BATCH_UNLABELED) -> Batch:
    return vector_batch(TASK, CoMatch.views, seed=seed, num_unlabeled=num_unlabeled)


@pytest.mark.parametrize("memory_batches", [1, 5])
def test_comatch_equals_the_literal_algorithm_over_120_steps(memory_batches: int) -> None:
    guidance = Told(TASK)
    learner = CoMatch(TASK, guidance, dim=DIM, memory_batches=memory_batches, **OPTIONS)
    literal = LiteralCoMatch(NUM_CLASSES, memory_batches * (BATCH_LABELED + BATCH_UNLABELED), **OPTIONS)
    mask_rates = []
    for step_number in range(120):
        # Batches smaller than the largest one too: the memory then wraps in the middle of a batch.
        num_unlabeled = BATCH_UNLABELED - (step_number % 7 == 6)
        batch, model = make_batch(step_number, num_unlabeled), RecordedWithHeads(learner)
        guidance.answer = (4 * torch.randn(num_unlabeled, NUM_CLASSES)).softmax(1)
        step = learner(model, batch)
        expected = literal.step(
            model(batch.x).tolist(),
            batch.y.tolist(),
            model.embed(batch.x).tolist(),
            guidance.answer.tolist(),
            model.embed(batch.u["weak"]).tolist(),
            model(batch.u["strong"]).tolist(),
            model.embed(batch.u["strong"]).tolist(),
            model.embed(batch.u["strong2"]).tolist(),
        )
        assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
        logs = {name: value.item() for name, value in step.logs.items()}
        assert logs == pytest.approx(
            {
                "loss/labeled": expected.labeled,
                "loss/unlabeled": expected.unlabeled,
                "loss/contrastive": expected.contrastive,
                "mask_rate": expected.mask_rate,
            },
            rel=1e-5,
            abs=1e-6,
        )
        assert learner.pseudo_labels[:num_unlabeled].tolist() == expected.pseudo_labels
        mask_rates.append(expected.mask_rate)
    assert 0 < sum(mask_rates) / len(mask_rates) < 1
    size, remembered = len(literal.memory), int(learner.remembered)
    assert remembered > 20 * size  # it went round many times
    embeddings, labels = (torch.tensor(rows) for rows in zip(*literal.memory, strict=True))
    torch.testing.assert_close(learner.memory_embeddings.roll(-(remembered % size), 0), embeddings)
    torch.testing.assert_close(learner.memory_labels.roll(-(remembered % size), 0), labels)


def test_the_first_batch_is_not_smoothed_and_fills_the_memory_with_labelled_images_first() -> None:
    guidance, batch = Told(TASK), make_batch()
    learner = CoMatch(TASK, guidance, dim=DIM, threshold=0.6)
    model = RecordedWithHeads(learner)
    guidance.answer = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]] * 3)
    learner(model, batch)
    assert learner.pseudo_labels.tolist() == [0, -1] * 3
    size = BATCH_LABELED + BATCH_UNLABELED
    onehot = torch.eye(NUM_CLASSES)[batch.y]
    assert torch.equal(learner.memory_labels[:size], torch.cat([onehot, guidance.answer]))
    images = torch.cat([batch.x, batch.u["weak"]])
    torch.testing.assert_close(learner.memory_embeddings[:size], torch.tensor(model.embed(images).tolist()))
    assert not learner.memory_labels[size:].any()


def test_the_memory_is_read_before_this_batch_is_written() -> None:
    guidance = Told(TASK)
    learner = CoMatch(TASK, guidance, dim=DIM, alpha=0.0, threshold=0.9, memory_batches=1)
    model, batch = RecordedWithHeads(learner), make_batch()._replace(y=torch.zeros(BATCH_LABELED, dtype=torch.int64))
    for answer, trained_as in ((0, 0), (1, 0), (2, -1)):  # at last, labels of class 0 and the rest of 1
        guidance.answer = torch.eye(NUM_CLASSES)[torch.full((BATCH_UNLABELED,), answer)]
        learner(model, batch)
        assert learner.pseudo_labels.tolist() == [trained_as] * BATCH_UNLABELED


def test_comatch_shows_the_guidance_the_weak_views_softmax_and_rows_once() -> None:
    batch, guidance = make_batch(), Told(TASK)
    guidance.answer = torch.full((BATCH_UNLABELED, NUM_CLASSES), 1 / NUM_CLASSES)
    learner = CoMatch(TASK, guidance)
    model = RecordedWithHeads(learner)
    learner(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model(batch.u["weak"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_comatch_makes_one_forward_of_all_images() -> None:
    batch, learner = make_batch(), CoMatch(TASK, NoGuidance(TASK))
    model = RecordedWithHeads(learner)
    learner(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, *(batch.u[view] for view in ("weak", "strong", "strong2"))]))


def test_gradient_goes_through_both_strong_views_and_not_through_pseudo_labels() -> None:
    learner = CoMatch(TASK, NoGuidance(TASK), threshold=0.0)
    model = RecordedWithHeads(learner)
    for seed in range(2):
        batch = make_batch(seed)
        learner(model, batch).loss.backward()
    grads = {view: images.grad for view, images in batch.u.items()}
    assert grads["weak"] is not None
    assert not grads["weak"].any()
    for view in ("strong", "strong2"):
        grad = grads[view]
        assert grad is not None
        assert (grad.abs().sum(1) > 0).all()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.heads.parameters())


def test_the_contrastive_loss_alone_sends_the_second_strong_view_its_gradient() -> None:
    batch, learner = make_batch(), CoMatch(TASK, NoGuidance(TASK), contrastive_weight=0.0)
    learner(RecordedWithHeads(learner), batch).loss.backward()
    assert batch.u["strong2"].grad is not None
    assert not batch.u["strong2"].grad.any()


def test_default_memory_holds_five_batches_and_the_projection_has_the_published_shape() -> None:
    task = Task(10, 50_000)
    learner = CoMatch(task, NoGuidance(task))
    assert learner.memory_embeddings.shape == (2560, 64)
    assert learner.memory_labels.shape == (2560, 10)
    projection = learner.heads(MLP((5,), 10, hidden=(6,)))["projection"]
    assert [
        (layer.in_features, layer.out_features) for layer in projection.modules() if isinstance(layer, nn.Linear)
    ] == [
        (6, 6),
        (6, 64),
    ]
    assert [layer.negative_slope for layer in projection.modules() if isinstance(layer, nn.LeakyReLU)] == [0.1]


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 1.5},
        {"graph_threshold": -0.1},
        {"alpha": 1.1},
        {"temperature": 0.0},
        {"unlabeled_weight": -1.0},
        {"contrastive_weight": -1.0},
        {"dim": 0},
        {"memory_batches": 0},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} is"):
        CoMatch(TASK, NoGuidance(TASK), **options)


def test_a_batch_without_anything_to_compare_is_refused() -> None:
    task = TASK._replace(batch_unlabeled=1)
    with pytest.raises(ValueError, match=r"batch_unlabeled is 1.*take at least 2"):
        CoMatch(task, NoGuidance(task))
