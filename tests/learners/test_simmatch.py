from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mnar.guidances import NoGuidance
from mnar.learners.simmatch import SimMatch
from mnar.models import MLP
from mnar.types import Batch, Task
from tests.reference.simmatch import LiteralSimMatch
from tests.support.stand_ins import RecordedWithHeads, Told

NUM_CLASSES, NUM_UNLABELED, BATCH_LABELED, BATCH_UNLABELED, DIM = 3, 20, 6, 5, 4
LABELS = [0, 2, 1, 0, 1, 0, 2]
TASK = Task(NUM_CLASSES, NUM_UNLABELED, torch.tensor(LABELS), BATCH_LABELED, BATCH_UNLABELED)
OPTIONS: dict[str, Any] = {
    "threshold": 0.8,
    "alpha": 0.7,
    "temperature": 0.3,
    "unlabeled_weight": 0.5,
    "instance_weight": 2.0,
    "bank_momentum": 0.6,
}


def make_batch(seed: int = 0, x_index: list[int] | None = None) -> Batch:
    torch.manual_seed(seed)
    index = torch.randint(len(LABELS), (BATCH_LABELED,)) if x_index is None else torch.tensor(x_index)
    return Batch(
        x=torch.randn(len(index), 5, requires_grad=True),
        y=torch.tensor(LABELS)[index],
        x_index=index,
        u={view: torch.randn(BATCH_UNLABELED, 5, requires_grad=True) for view in SimMatch.views},
        u_index=torch.randperm(NUM_UNLABELED)[:BATCH_UNLABELED],
    )


def test_simmatch_equals_the_literal_algorithm_over_120_steps_with_repeated_labelled_images() -> None:
    guidance = Told(TASK)
    learner = SimMatch(TASK, guidance, dim=DIM, **OPTIONS)
    literal = LiteralSimMatch(NUM_CLASSES, LABELS, **OPTIONS)
    mask_rates, num_repeats = [], 0
    for step_number in range(120):
        # At first some classes have no image in the bank, and a pseudo-label may be all of such a class.
        x_index = [0, 3, 0] if step_number < 10 else None
        batch, model = make_batch(step_number, x_index), RecordedWithHeads(learner)
        guidance.answer = (4 * torch.randn(BATCH_UNLABELED, NUM_CLASSES)).softmax(1)
        guidance.answer[0] = torch.eye(NUM_CLASSES)[step_number % NUM_CLASSES]
        step = learner(model, batch)
        expected = literal.step(
            model(batch.x).tolist(),
            batch.y.tolist(),
            model.embed(batch.x).tolist(),
            batch.x_index.tolist(),
            guidance.answer.tolist(),
            model.embed(batch.u["weak"]).tolist(),
            model(batch.u["strong"]).tolist(),
            model.embed(batch.u["strong"]).tolist(),
        )
        assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
        logs = {name: value.item() for name, value in step.logs.items()}
        assert logs == pytest.approx(
            {
                "loss/labeled": expected.labeled,
                "loss/unlabeled": expected.unlabeled,
                "loss/instance": expected.instance,
                "mask_rate": expected.mask_rate,
            },
            rel=1e-5,
            abs=1e-6,
        )
        assert learner.pseudo_labels.tolist() == expected.pseudo_labels
        assert [row for row, filled in enumerate(learner.filled.tolist()) if filled] == sorted(literal.bank)
        for row, embedding in literal.bank.items():
            assert learner.bank[row].tolist() == pytest.approx(embedding, abs=1e-5)
        mask_rates.append(expected.mask_rate)
        num_repeats += len(set(batch.x_index.tolist())) < len(batch.x_index)
    assert 0 < sum(mask_rates) / len(mask_rates) < 1
    assert num_repeats > 50
    assert learner.filled.all()


def test_every_embedding_in_the_bank_has_length_one() -> None:
    learner = SimMatch(TASK, NoGuidance(TASK))
    model = RecordedWithHeads(learner)
    for seed in range(10):
        learner(model, make_batch(seed))
    assert learner.filled.all()
    torch.testing.assert_close(learner.bank.norm(dim=1), torch.ones(len(LABELS)))


def test_this_batch_is_written_to_the_bank_before_the_bank_is_read() -> None:
    learner = SimMatch(TASK, Told(TASK), alpha=0.0, threshold=0.5)
    model = RecordedWithHeads(learner)
    for image in (1, 2):  # beside image 1 in the bank, image 2 outweighs it for views of itself
        batch = make_batch(image, [image] * 3)
        batch.u["weak"].data.copy_(batch.x[:1].expand(BATCH_UNLABELED, -1))
        batch = batch._replace(x=batch.x[:1].expand(3, -1))
        learner(model, batch)
        assert learner.pseudo_labels.tolist() == [LABELS[image]] * BATCH_UNLABELED


def test_a_repeated_image_enters_the_bank_as_the_mean_of_its_rows_in_any_order() -> None:
    learners = [SimMatch(TASK, NoGuidance(TASK)) for _ in range(2)]
    model = RecordedWithHeads(learners[0])
    batch = make_batch(0, [4, 1, 4, 4, 1, 6])
    order = torch.tensor([5, 3, 4, 0, 1, 2])
    learners[0](model, batch)
    learners[1](model, batch._replace(x=batch.x[order], y=batch.y[order], x_index=batch.x_index[order]))
    z = model.embed(batch.x)
    for rows, image in (([0, 2, 3], 4), ([1, 4], 1), ([5], 6)):
        mean = z[rows].mean(0)
        for learner in learners:
            torch.testing.assert_close(learner.bank[image], mean / mean.norm())
            assert learner.filled.tolist() == [image in (1, 4, 6) for image in range(len(LABELS))]


def test_a_pseudo_label_of_a_class_without_an_image_in_the_bank_adds_no_instance_loss() -> None:
    guidance = Told(TASK)
    guidance.answer = torch.eye(NUM_CLASSES)[torch.full((BATCH_UNLABELED,), 2)]
    learner, batch = SimMatch(TASK, guidance), make_batch(0, [0, 3, 5])
    step = learner(RecordedWithHeads(learner), batch)
    assert step.logs["loss/instance"] == 0
    step.loss.backward()
    assert batch.u["strong"].grad is not None
    assert batch.u["strong"].grad.isfinite().all()


def test_simmatch_shows_the_guidance_the_weak_views_softmax_and_rows_once() -> None:
    batch, guidance = make_batch(), Told(TASK)
    learner = SimMatch(TASK, guidance)
    model = RecordedWithHeads(learner)
    learner(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model(batch.u["weak"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_simmatch_makes_one_forward_of_all_images() -> None:
    batch, learner = make_batch(), SimMatch(TASK, NoGuidance(TASK))
    model = RecordedWithHeads(learner)
    learner(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, batch.u["weak"], batch.u["strong"]]))


def test_gradient_goes_through_the_strong_view_and_neither_through_pseudo_labels_nor_the_bank() -> None:
    learner = SimMatch(TASK, NoGuidance(TASK), threshold=0.0)
    model = RecordedWithHeads(learner)
    batch = make_batch()
    learner(model, batch).loss.backward()
    assert batch.u["weak"].grad is not None
    assert not batch.u["weak"].grad.any()
    assert batch.u["strong"].grad is not None
    assert (batch.u["strong"].grad.abs().sum(1) > 0).all()
    (of_labeled,) = torch.autograd.grad(nn.functional.cross_entropy(model(batch.x), batch.y), batch.x)
    torch.testing.assert_close(batch.x.grad, of_labeled)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.heads.parameters())


def test_default_bank_and_projection_have_the_published_shape() -> None:
    learner = SimMatch(TASK, NoGuidance(TASK))
    assert learner.bank.shape == (len(LABELS), 128)
    projection = learner.heads(MLP((5,), NUM_CLASSES, hidden=(6,)))["projection"]
    kinds = [type(layer) for layer in projection.modules() if not list(layer.children())]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear]
    assert projection(torch.randn(2, 6)).shape == (2, 128)


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 1.5},
        {"alpha": 1.1},
        {"temperature": 0.0},
        {"unlabeled_weight": -1.0},
        {"instance_weight": -1.0},
        {"dim": 0},
        {"bank_momentum": 1.0},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} is"):
        SimMatch(TASK, NoGuidance(TASK), **options)


def test_missing_labels_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"no labels.*choose fixmatch"):
        SimMatch(TASK._replace(labeled_targets=None), NoGuidance(TASK))
    with pytest.raises(ValueError, match=r"no labelled image of class \[1\].*label at least one of each"):
        SimMatch(TASK._replace(labeled_targets=torch.tensor([0, 2, 2])), NoGuidance(TASK))
