from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mnar.guidances import CADR, CDMAD, NoGuidance, SimPro
from mnar.learners.acr import ACR
from mnar.models import MLP
from mnar.types import Batch, Task
from tests.reference.acr import LiteralACR
from tests.support.stand_ins import RecordedWithHeads, Told, vector_batch

COUNTS = (9, 4, 2, 1)
NUM_CLASSES, NUM_UNLABELED, BATCH_LABELED, BATCH_UNLABELED = 4, 30, 5, 12
TARGETS = torch.tensor([label for label, count in enumerate(COUNTS) for _ in range(count)])
TASK = Task(NUM_CLASSES, NUM_UNLABELED, TARGETS, BATCH_LABELED, BATCH_UNLABELED)
OPTIONS: dict[str, Any] = {"threshold": 0.7, "strength": 1.5, "momentum": 0.9, "unlabeled_weight": 0.5}


def make_batch(seed: int = 0, num_unlabeled: int = BATCH_UNLABELED) -> Batch:
    return vector_batch(TASK, ACR.views, seed=seed, num_unlabeled=num_unlabeled)


def make_model(learner: ACR) -> RecordedWithHeads:
    """A model whose predictions are unsure for some samples and sure for others."""
    model = RecordedWithHeads(learner)
    with torch.no_grad():
        for head in (model.head, model.heads["plain"]):
            head.weight.mul_(12)  # type: ignore[union-attr,operator]
    return model


def predictions(model: RecordedWithHeads, images: Tensor) -> tuple[list[list[float]], list[list[float]]]:
    """Logits of the plain and of the balanced head."""
    features = model.features(images)
    return model.heads["plain"](features).tolist(), model.head(features).tolist()


@pytest.mark.parametrize("weak_gradient", [True, False])
@pytest.mark.parametrize("anchors", [True, False])
def test_acr_equals_the_literal_algorithm_over_100_steps(anchors: bool, weak_gradient: bool) -> None:
    learner = ACR(TASK, NoGuidance(TASK), anchors=anchors, weak_gradient=weak_gradient, **OPTIONS)
    literal = LiteralACR(COUNTS, BATCH_UNLABELED, anchors=anchors, **OPTIONS)
    used, differing, strengths = [], 0, set()
    for step_number in range(100):
        num_unlabeled = BATCH_UNLABELED - (step_number % 7 == 6)
        batch = make_batch(step_number, num_unlabeled)
        model = make_model(learner)
        step = learner(model, batch)
        strong = [predictions(model, batch.u[view]) for view in ("strong", "strong2")]
        plain_x, balanced_x = predictions(model, batch.x)
        expected = literal.step(
            plain_x,
            balanced_x,
            batch.y.tolist(),
            *predictions(model, batch.u["weak"]),
            [plain for plain, _ in strong],
            [balanced for _, balanced in strong],
        )
        assert step.loss.item() == pytest.approx(expected.loss, rel=1e-4)
        logs = {name: value.item() for name, value in step.logs.items()}
        assert logs == pytest.approx(
            {
                "loss/labeled": expected.labeled,
                "loss/unlabeled": expected.unlabeled,
                "mask_rate": expected.mask_rate,
                **({"plain_strength": expected.plain_strength} if anchors else {}),
            },
            rel=1e-4,
            abs=1e-6,
        )
        assert learner.pseudo_labels[:num_unlabeled].tolist() == expected.pseudo_labels
        assert learner.pool_counts.tolist() == pytest.approx(literal.pool_counts, rel=1e-4)
        used.append(expected.mask_rate)
        differing += expected.pseudo_labels != expected.plain_pseudo_labels
        strengths.add(round(expected.plain_strength, 6))
    assert 0.2 < sum(used) / len(used) < 0.95
    assert differing > 50, "the two heads have their own masks"
    assert len(strengths) > 80 if anchors else strengths == {OPTIONS["strength"]}


def test_confidences_at_the_threshold_are_used_if_either_prediction_of_a_branch_reaches_it() -> None:
    learner = ACR(TASK, Told(TASK), threshold=0.75, anchors=False)
    zeros = torch.zeros(1, 5)
    batch = Batch(zeros, torch.tensor([0]), torch.tensor([0]), dict.fromkeys(ACR.views, zeros), torch.tensor([0]))
    guidance = learner.guidance
    assert isinstance(guidance, Told)

    def losses(plain: list[float], balanced: list[float], q: list[float]) -> tuple[bool, float]:
        """Whether the balanced head is trained, and the unlabelled loss."""
        model = RecordedWithHeads(learner)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.heads["plain"].bias.copy_(torch.tensor(plain).log())  # type: ignore[union-attr,operator]
            model.head.bias.copy_(torch.tensor(balanced).log())
        guidance.answer = torch.tensor([q])
        step = learner(model, batch)
        return learner.pseudo_labels[0].item() >= 0, step.logs["loss/unlabeled"].item()

    flat, sure = [0.25] * 4, [0.125, 0.8125, 0.03125, 0.03125]
    unsure_q, sure_q = [0.5, 0.25, 0.125, 0.125], [0.75, 0.25, 0.0, 0.0]
    ce = {"flat": -torch.tensor(0.25).log().item(), "sure": -torch.tensor(0.125).log().item()}  # of class 0
    assert losses(flat, flat, unsure_q) == (False, 0)
    assert losses(flat, flat, sure_q) == (True, pytest.approx(2 * ce["flat"]))
    assert losses(sure, flat, unsure_q) == (False, pytest.approx(ce["sure"])), "the plain head alone"
    assert losses(flat, sure, unsure_q) == (True, pytest.approx(ce["sure"])), "the balanced head alone"


def test_the_guidance_sees_the_adjusted_prediction_once_and_both_heads_learn_its_answer() -> None:
    batch, guidance = make_batch(), Told(TASK)
    learner = ACR(TASK, guidance)
    model = make_model(learner)
    guidance.answer = torch.eye(NUM_CLASSES)[torch.full((BATCH_UNLABELED,), 2)]  # a one-hot label stays one-hot
    step = learner(model, batch)
    ((probs, index),) = guidance.seen
    shares = torch.tensor(COUNTS) / sum(COUNTS)
    plain = torch.tensor(predictions(model, batch.u["weak"])[0])
    torch.testing.assert_close(probs, (plain.exp() / shares**2) / (plain.exp() / shares**2).sum(1, keepdim=True))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)
    assert learner.pseudo_labels.tolist() == [2] * BATCH_UNLABELED
    expected = 0.0
    for view in ("strong", "strong2"):
        for logits in predictions(model, batch.u[view]):
            expected -= torch.tensor(logits).log_softmax(1)[:, 2].mean().item() / 2
    assert step.logs["loss/unlabeled"].item() == pytest.approx(expected, rel=1e-5)


def test_acr_makes_one_forward_of_all_images() -> None:
    batch, learner = make_batch(), ACR(TASK, NoGuidance(TASK))
    model = RecordedWithHeads(learner)
    learner(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, *(batch.u[view] for view in ("weak", "strong", "strong2"))]))


def test_gradient_goes_through_both_strong_views_and_both_heads_and_not_through_pseudo_labels() -> None:
    batch, learner = make_batch(), ACR(TASK, NoGuidance(TASK), threshold=0.0)
    model = RecordedWithHeads(learner)
    learner(model, batch).loss.backward()
    grads = {view: images.grad for view, images in batch.u.items()}
    assert grads["weak"] is not None
    assert not grads["weak"].any()
    for view in ("strong", "strong2"):
        grad = grads[view]
        assert grad is not None
        assert (grad.abs().sum(1) > 0).all()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


# By hand, for labels with the shares 9, 4, 2, 1 of 16: the mean KL divergence to the reversed and to uniform shares.
REVERSE = 8 / 16 * math.log(9) + 2 / 16 * math.log(2)
UNIFORM = (5 / 16 * math.log(9 / 4) + 2 / 16 * math.log(2) + 3 / 16 * math.log(4)) / 2


@pytest.mark.parametrize(
    ("pool", "to_labels", "to_uniform", "to_reversed"),
    [((9, 4, 2, 1), 0, UNIFORM, REVERSE), ((1, 1, 1, 1), UNIFORM, 0, UNIFORM), ((1, 2, 4, 9), REVERSE, UNIFORM, 0)],
)
def test_the_strength_equals_the_formula_by_hand_for_a_pool_at_each_anchor(
    pool: tuple[int, ...], to_labels: float, to_uniform: float, to_reversed: float
) -> None:
    learner = ACR(TASK, NoGuidance(TASK))
    learner.pool_counts.copy_(torch.tensor(pool))
    batch = make_batch()
    learner.threshold = 2.0  # No prediction is confident enough to change the estimate.
    strength = learner(RecordedWithHeads(learner), batch).logs["plain_strength"].item()
    weights = [math.exp(distance) for distance in (to_labels, to_uniform, to_reversed)]
    assert strength == pytest.approx(2 * weights[0] / sum(weights), rel=1e-5)


def test_the_reversed_anchor_follows_the_size_of_the_classes_and_not_their_order() -> None:
    targets = torch.tensor([0, 1, 1, 1, 1, 1, 2, 2, 2, 3])  # counts 1, 5, 3, 1
    learner = ACR(TASK._replace(labeled_targets=targets), NoGuidance(TASK))
    assert (10 * learner.anchor_shares[2]).tolist() == pytest.approx([3, 1, 1, 5])
    in_order = ACR(TASK._replace(labeled_targets=targets.new_tensor([0, 0, 0, 0, 0, 1, 1, 2, 3])), NoGuidance(TASK))
    assert (9 * in_order.anchor_shares[2]).tolist() == pytest.approx([1, 1, 2, 5])


def test_batches_without_confident_predictions_leave_the_strength_unchanged() -> None:
    learner = ACR(TASK, NoGuidance(TASK), threshold=0.0, momentum=0.5)
    learner(RecordedWithHeads(learner), make_batch())
    learner.threshold = 2.0
    strengths = [
        learner(RecordedWithHeads(learner), make_batch(seed)).logs["plain_strength"].item() for seed in range(3)
    ]
    assert strengths == pytest.approx([strengths[0]] * 3, rel=1e-6)
    for seed in range(300):  # until every count is 0
        strength = learner(RecordedWithHeads(learner), make_batch(seed)).logs["plain_strength"].item()
    weights = [math.exp(distance) for distance in (UNIFORM, 0, UNIFORM)]
    assert strength == pytest.approx(2 * weights[0] / sum(weights), rel=1e-5), "the estimate is then uniform"


def test_equally_many_labels_per_class_make_both_branches_those_of_fixmatch() -> None:
    """Then the adjustment is a constant, and the strength has no effect."""
    task = TASK._replace(labeled_targets=torch.arange(8) % NUM_CLASSES)
    losses = set()
    for options in ({"strength": 2.0}, {"strength": 0.0}, {"strength": 2.0, "anchors": False}):
        learner = ACR(task, NoGuidance(task), threshold=0.5, **options)  # type: ignore[arg-type]
        torch.manual_seed(3)
        losses.add(round(learner(make_model(learner), make_batch()).loss.item(), 4))
    assert len(losses) == 1


@pytest.mark.parametrize(
    "options",
    [{"threshold": 1.5}, {"strength": -1.0}, {"strength": float("inf")}, {"momentum": 1.0}, {"unlabeled_weight": -1.0}],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} is"):
        ACR(TASK, NoGuidance(TASK), **options)


def test_a_class_without_labels_is_refused_by_its_number_with_a_remedy() -> None:
    task = TASK._replace(labeled_targets=torch.tensor([0, 0, 2]))
    with pytest.raises(ValueError, match=r"no labelled sample of class 1, 3; ACR .*label at least one .* method"):
        ACR(task, NoGuidance(task))
    with pytest.raises(ValueError, match="the task has no labels"):
        ACR(TASK._replace(labeled_targets=None), NoGuidance(TASK))


@pytest.mark.parametrize("guidance", [CADR, SimPro, CDMAD])
def test_a_guidance_that_corrects_the_logits_itself_is_refused(guidance: type[CADR | SimPro | CDMAD]) -> None:
    with pytest.raises(ValueError, match=f"ACR does not support {guidance.__name__}"):
        ACR(TASK, guidance(TASK))


def test_the_plain_head_has_the_shape_of_the_head_that_is_evaluated() -> None:
    model = MLP((5,), NUM_CLASSES, hidden=(6,))
    plain = ACR(TASK, NoGuidance(TASK)).heads(model)["plain"]
    assert isinstance(plain, nn.Linear)
    assert plain.weight.shape == model.head.weight.shape == (NUM_CLASSES, 6)
