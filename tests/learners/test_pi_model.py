from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mnar.guidances import NoGuidance
from mnar.learners.pi_model import PiModel
from mnar.types import Batch
from tests.learners.test_fixmatch import NUM_CLASSES, NUM_UNLABELED, TASK, make_batch
from tests.reference.pi_model import pi_model
from tests.support.stand_ins import Dictated, Recorded


def two_draws() -> Batch:
    batch = make_batch()
    return batch._replace(u={"weak": batch.u["weak"], "weak2": batch.u["strong"]})


def soft_targets() -> Tensor:
    return torch.rand(NUM_UNLABELED, NUM_CLASSES, generator=torch.Generator().manual_seed(2)).softmax(1)


@pytest.mark.parametrize("unlabeled_weight", [10.0, 0.25, 0.0])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.4, 1.0])
def test_pi_model_equals_the_literal_formula(unlabeled_weight: float, progress: float) -> None:
    batch, model, table = two_draws(), Recorded(), soft_targets()
    learner = PiModel(TASK, Dictated(TASK, table), unlabeled_weight=unlabeled_weight, ramp=0.4)
    learner.progress.fill_(progress)
    step = learner(model, batch)
    expected = pi_model(
        model.linear(batch.x).tolist(),
        batch.y.tolist(),
        model.linear(batch.u["weak"]).tolist(),
        table[batch.u_index].tolist(),
        unlabeled_weight=unlabeled_weight,
        progress=progress,
        ramp=0.4,
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    logs = {name: value.item() for name, value in step.logs.items()}
    assert logs == pytest.approx(
        {"loss/labeled": expected.labeled, "loss/unlabeled": expected.unlabeled},
        rel=1e-5,
    )
    assert learner.pseudo_labels.tolist() == expected.pseudo_labels


def test_pi_model_shows_the_guidance_the_second_draws_softmax_and_rows() -> None:
    batch, model = two_draws(), Recorded()
    guidance = Dictated(TASK, soft_targets())
    PiModel(TASK, guidance)(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model.linear(batch.u["weak2"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_pi_model_makes_one_forward_of_all_images() -> None:
    batch, model = two_draws(), Recorded()
    PiModel(TASK, NoGuidance(TASK))(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, batch.u["weak"], batch.u["weak2"]]))


def test_the_gradient_goes_through_the_first_draw_alone() -> None:
    batch, model = two_draws(), Recorded()
    learner = PiModel(TASK, NoGuidance(TASK))
    learner.progress.fill_(1)
    learner(model, batch).loss.backward()
    assert batch.u["weak2"].grad is not None
    assert batch.u["weak2"].grad.abs().sum() == 0
    assert batch.u["weak"].grad is not None
    assert (batch.u["weak"].grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("options", [{"unlabeled_weight": -1.0}, {"ramp": 0.0}])
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        PiModel(TASK, NoGuidance(TASK), **options)
