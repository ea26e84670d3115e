from __future__ import annotations

import copy

import pytest
import torch

from mnar.guidances import NoGuidance
from mnar.learners.mean_teacher import MeanTeacher
from mnar.training.optimizer import Average
from tests.learners.test_fixmatch import TASK
from tests.learners.test_pi_model import soft_targets, two_draws
from tests.reference.mean_teacher import MeanTeacherReference, Weights
from tests.reference.pi_model import pi_model
from tests.support.stand_ins import Dictated, Recorded


def weights_of(model: Recorded) -> Weights:
    rows: Weights = torch.cat([model.linear.weight, model.linear.bias[:, None]], 1).tolist()
    return rows


def test_mean_teacher_equals_the_literal_algorithm_over_20_steps() -> None:
    decay, weight, ramp, num_steps = 0.8, 50.0, 0.4, 20
    batch, model = two_draws(), Recorded()
    average, reference = Average(model, decay), MeanTeacherReference(weights_of(model), decay=decay)
    learner = MeanTeacher(TASK, NoGuidance(TASK), unlabeled_weight=weight, ramp=ramp)
    learner.set_teacher(average.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for number in range(num_steps):
        learner.progress.fill_(number / num_steps)
        step = learner(model, batch)
        expected = reference.step(
            weights_of(model),
            *(batch.x.tolist(), batch.y.tolist(), batch.u["weak"].tolist(), batch.u["weak2"].tolist()),
            unlabeled_weight=weight,
            progress=number / num_steps,
            ramp=ramp,
        )
        assert step.loss.item() == pytest.approx(expected.loss, rel=1e-4)
        logs = {name: value.item() for name, value in step.logs.items()}
        assert logs == pytest.approx(
            {"loss/labeled": expected.labeled, "loss/unlabeled": expected.unlabeled},
            rel=1e-4,
        )
        assert learner.pseudo_labels.tolist() == expected.pseudo_labels

        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
        average.update()
        reference.update(weights_of(model))
    assert not torch.allclose(model.linear.weight, average.model.linear.weight, atol=1e-3), "a teacher of its own"


def test_mean_teacher_pulls_the_student_towards_what_the_guidance_made_of_the_teachers_prediction() -> None:
    batch, model, teacher, table = two_draws(), Recorded(), Recorded(), soft_targets()
    guidance = Dictated(TASK, table)
    learner = MeanTeacher(TASK, guidance)
    learner.set_teacher(teacher)
    learner.progress.fill_(0.1)
    step = learner(model, batch)

    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, teacher.linear(batch.u["weak2"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)
    expected = pi_model(
        model.linear(batch.x).tolist(),
        batch.y.tolist(),
        model.linear(batch.u["weak"]).tolist(),
        table[batch.u_index].tolist(),
        unlabeled_weight=50.0,
        progress=0.1,
        ramp=0.4,
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    assert learner.pseudo_labels.tolist() == expected.pseudo_labels


def test_student_and_teacher_make_one_forward_each_of_the_draw_that_is_theirs() -> None:
    batch, model, teacher = two_draws(), Recorded(), Recorded()
    learner = MeanTeacher(TASK, NoGuidance(TASK))
    learner.set_teacher(teacher)
    learner(model, batch)
    (of_student,), (of_teacher,) = model.inputs, teacher.inputs
    assert torch.equal(of_student, torch.cat([batch.x, batch.u["weak"]]))
    assert torch.equal(of_teacher, batch.u["weak2"])


def test_the_gradient_goes_through_the_student_alone() -> None:
    batch, model = two_draws(), Recorded()
    teacher = copy.deepcopy(model)
    learner = MeanTeacher(TASK, NoGuidance(TASK))
    learner.set_teacher(teacher)
    learner.progress.fill_(1)
    learner(model, batch).loss.backward()
    assert [parameter.grad for parameter in teacher.parameters()] == [None, None]
    assert batch.u["weak2"].grad is None
    assert batch.u["weak"].grad is not None
    assert (batch.u["weak"].grad.abs().sum(1) > 0).all()


def test_without_a_teacher_the_error_says_how_to_set_one() -> None:
    with pytest.raises(ValueError, match=r"no teacher; call learner\.set_teacher\(average\)"):
        MeanTeacher(TASK, NoGuidance(TASK))(Recorded(), two_draws())


@pytest.mark.parametrize("options", [{"unlabeled_weight": -1.0}, {"ramp": 0.0}])
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        MeanTeacher(TASK, NoGuidance(TASK), **options)
