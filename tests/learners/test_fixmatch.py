from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mnar.guidances import NoGuidance
from mnar.learners import FixMatch, Supervised
from mnar.recipes import configure
from mnar.run import load_data, make_split, make_trainer
from mnar.types import Batch, Task
from tests.reference.fixmatch import cross_entropy, fixmatch
from tests.support.stand_ins import Dictated, Recorded

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED, BATCH_UNLABELED = 4, 6, 30, 10
THRESHOLD = 0.75  # a number that float32 holds, so a confidence can equal it
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_labeled=NUM_LABELED, batch_unlabeled=BATCH_UNLABELED)


def make_batch(*further_views: str) -> Batch:
    torch.manual_seed(1)
    names = ("weak", "strong", *further_views)
    views = {view: torch.randn(BATCH_UNLABELED, 3, requires_grad=True) for view in names}
    return Batch(
        x=torch.randn(NUM_LABELED, 3),
        y=torch.randint(NUM_CLASSES, (NUM_LABELED,)),
        x_index=torch.arange(NUM_LABELED),
        u=views,
        u_index=torch.randperm(NUM_UNLABELED)[:BATCH_UNLABELED],
    )


def confidences_around_the_threshold() -> Tensor:
    """Per sample: below, at, or above the threshold, for classes in turn."""
    table = torch.full((NUM_UNLABELED, NUM_CLASSES), 0.0)
    for sample in range(NUM_UNLABELED):
        confidence = (0.5, THRESHOLD, 0.74999994, 0.875)[sample % 4]
        table[sample] = (1 - confidence) / (NUM_CLASSES - 1)
        table[sample, sample % NUM_CLASSES] = confidence
    return table


@pytest.mark.parametrize("unlabeled_weight", [1.0, 0.25, 0.0])
def test_fixmatch_equals_the_literal_formula(unlabeled_weight: float) -> None:
    batch, model, table = make_batch(), Recorded(), confidences_around_the_threshold()
    guidance = Dictated(TASK, table)
    learner = FixMatch(TASK, guidance, threshold=THRESHOLD, unlabeled_weight=unlabeled_weight)
    step = learner(model, batch)
    expected = fixmatch(
        model.linear(batch.x).tolist(),
        batch.y.tolist(),
        table[batch.u_index].tolist(),
        model.linear(batch.u["strong"]).tolist(),
        threshold=THRESHOLD,
        unlabeled_weight=unlabeled_weight,
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


@pytest.mark.parametrize("strong_views", [1, 3])
def test_soft_targets_and_several_strong_views_equal_the_mean_of_cross_entropies(strong_views: int) -> None:
    batch, model, table = make_batch("strong2", "strong3"), Recorded(), confidences_around_the_threshold()
    options = {"targets": "soft", "strong_views": strong_views, "threshold": THRESHOLD}
    learner = FixMatch(TASK, Dictated(TASK, table), **options)  # type: ignore[arg-type]
    assert learner.views == ("weak", "strong", "strong2", "strong3")[: 1 + strong_views]
    step = learner(model, batch)
    losses = []
    for view in learner.views[1:]:
        for logits, target in zip(model.linear(batch.u[view]), table[batch.u_index], strict=True):
            loss = -(target * (logits - logits.exp().sum().log())).sum().item()
            losses.append(loss if target.max() >= THRESHOLD else 0.0)
    assert step.logs["loss/unlabeled"].item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert learner.pseudo_labels.tolist() == [
        int(target.argmax()) if target.max() >= THRESHOLD else -1 for target in table[batch.u_index]
    ]


def test_a_strong_view_of_the_labels_is_the_second_half_of_the_labelled_batch() -> None:
    config = configure(
        dataset="digits", iterations=4, settings=["learner.labeled_strong=true", "train.batch_labeled=8"]
    )
    data = load_data(config)
    trainer = make_trainer(config, data, make_split(config, data))
    assert trainer.learner.forward_size == 2 * 8 + 2 * config.train.batch_unlabeled
    assert trainer.loader.images_until(3) == 3 * trainer.learner.forward_size
    trainer.loader.seek(0)
    torch.manual_seed(0)
    batch = trainer.loader.batch()
    torch.manual_seed(0)
    labeled = trainer.loader._inputs[trainer.loader._labeled_rows[batch.x_index[:8]]]
    views = [trainer.loader.augment(labeled, kind) for kind in ("weak", "strong")]
    assert torch.equal(batch.x, torch.cat(views))
    assert torch.equal(batch.y[:8], batch.y[8:])
    assert torch.equal(batch.x_index[:8], batch.x_index[8:])


def test_fixmatch_shows_the_guidance_the_weak_views_softmax_and_rows() -> None:
    batch, model = make_batch(), Recorded()
    guidance = Dictated(TASK, confidences_around_the_threshold())
    FixMatch(TASK, guidance)(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model.linear(batch.u["weak"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_fixmatch_makes_one_forward_of_all_images() -> None:
    batch, model = make_batch(), Recorded()
    FixMatch(TASK, NoGuidance(TASK))(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, batch.u["weak"], batch.u["strong"]]))


def test_no_gradient_goes_through_a_pseudo_label() -> None:
    batch, model = make_batch(), Recorded()
    FixMatch(TASK, NoGuidance(TASK), threshold=0.0)(model, batch).loss.backward()
    assert batch.u["weak"].grad is not None
    assert batch.u["weak"].grad.abs().sum() == 0
    assert batch.u["strong"].grad is not None
    assert (batch.u["strong"].grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize(
    "options", [{"threshold": -0.1}, {"threshold": 1.5}, {"unlabeled_weight": -1.0}, {"strong_views": 0}]
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        FixMatch(TASK, NoGuidance(TASK), **options)


def test_unknown_targets_are_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"targets is 'fuzzy'; choose from \['hard', 'soft'\]"):
        FixMatch(TASK, NoGuidance(TASK), targets="fuzzy")  # type: ignore[arg-type]


def test_a_smaller_batch_leaves_no_pseudo_label_of_the_one_before() -> None:
    learner = FixMatch(TASK, NoGuidance(TASK))
    learner.note_pseudo_labels(torch.tensor([3, 1, 2, 0]), torch.tensor([True] * 4))
    learner.note_pseudo_labels(torch.tensor([2, 1]), torch.tensor([True, False]))
    assert learner.pseudo_labels.tolist() == [2] + [-1] * (BATCH_UNLABELED - 1)


def test_supervised_is_cross_entropy_of_the_labelled_part_whatever_is_unlabelled() -> None:
    batch, model = make_batch(), Recorded()
    learner = Supervised(TASK, NoGuidance(TASK))
    expected = sum(map(cross_entropy, model.linear(batch.x).tolist(), batch.y.tolist())) / NUM_LABELED
    for other in (batch, batch._replace(u={})):
        step = learner(model, other)
        assert step.loss.item() == pytest.approx(expected, rel=1e-6)
        assert step.logs == {}
