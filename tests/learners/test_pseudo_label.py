from __future__ import annotations

import pytest
import torch

from mnar.guidances import NoGuidance
from mnar.learners.pseudo_label import PseudoLabel
from tests.learners.test_fixmatch import TASK, THRESHOLD, confidences_around_the_threshold, make_batch
from tests.reference.pseudo_label import pseudo_label
from tests.support.stand_ins import Dictated, Recorded


@pytest.mark.parametrize("unlabeled_weight", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.4, 1.0])
def test_pseudo_label_equals_the_literal_formula(unlabeled_weight: float, progress: float) -> None:
    batch, model, table = make_batch(), Recorded(), confidences_around_the_threshold()
    learner = PseudoLabel(TASK, Dictated(TASK, table), threshold=THRESHOLD, unlabeled_weight=unlabeled_weight, ramp=0.4)
    learner.progress.fill_(progress)
    step = learner(model, batch)
    expected = pseudo_label(
        model.linear(batch.x).tolist(),
        batch.y.tolist(),
        model.linear(batch.u["weak"]).tolist(),
        table[batch.u_index].tolist(),
        threshold=THRESHOLD,
        unlabeled_weight=unlabeled_weight,
        progress=progress,
        ramp=0.4,
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    logs = {name: value.item() for name, value in step.logs.items()}
    assert logs == pytest.approx(
        {
            "loss/labeled": expected.labeled,
            "loss/unlabeled": expected.unlabeled,
            "mask_rate": expected.mask_rate,
        },
        rel=1e-5,
    )
    assert learner.pseudo_labels.tolist() == expected.pseudo_labels
    at_threshold = table[batch.u_index].max(1).values == THRESHOLD
    assert at_threshold.any()
    assert (learner.pseudo_labels[at_threshold] >= 0).all()
    assert 0 < expected.mask_rate < 1


def test_pseudo_label_shows_the_guidance_the_weak_views_softmax_and_rows() -> None:
    batch, model = make_batch(), Recorded()
    guidance = Dictated(TASK, confidences_around_the_threshold())
    PseudoLabel(TASK, guidance)(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model.linear(batch.u["weak"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_pseudo_label_makes_one_forward_of_all_samples() -> None:
    batch, model = make_batch(), Recorded()
    PseudoLabel(TASK, NoGuidance(TASK))(model, batch)
    (samples,) = model.inputs
    assert torch.equal(samples, torch.cat([batch.x, batch.u["weak"]]))


def test_the_gradient_of_a_logit_is_softmax_minus_rectified_label_where_confident_else_none() -> None:
    batch, model, table = make_batch(), Recorded(), confidences_around_the_threshold()
    learner = PseudoLabel(TASK, Dictated(TASK, table), threshold=THRESHOLD)
    learner.progress.fill_(1)
    learner(model, batch).loss.backward()

    logits = model.linear(batch.u["weak"]).detach()
    of_logits = logits.softmax(1)
    for sample, label in enumerate(learner.pseudo_labels.tolist()):
        if label < 0:
            of_logits[sample] = 0
        else:
            of_logits[sample, label] -= 1
    expected = of_logits @ model.linear.weight.detach() / len(logits)
    torch.testing.assert_close(batch.u["weak"].grad, expected)


@pytest.mark.parametrize(
    "options", [{"threshold": -0.1}, {"threshold": 1.5}, {"unlabeled_weight": -1.0}, {"ramp": 2.0}]
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        PseudoLabel(TASK, NoGuidance(TASK), **options)
