from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.guidances import PRG, NoGuidance
from mnar.learners.learner import Predict
from mnar.learners.ups import UPS, balance, select_negatives, select_positives
from mnar.models import MLP, SmallCNN
from mnar.types import Batch, Task
from tests.reference import ups as reference
from tests.reference.fixmatch import cross_entropy
from tests.support.stand_ins import Dictated, Recorded

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED, BATCH_UNLABELED, PASSES = 4, 6, 30, 8, 5
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_labeled=NUM_LABELED, batch_unlabeled=BATCH_UNLABELED)
OPTIONS: dict[str, Any] = {
    "positive_threshold": 0.5,
    "positive_uncertainty": 0.2,
    "negative_threshold": 0.2,
    "negative_uncertainty": 0.1,
    "negative_temperature": 2.0,
    "balanced_generations": 3,
    "balance_minimum": 2,
}


def make_batch(seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    return Batch(
        x=torch.randn(NUM_LABELED, 3),
        y=torch.randint(NUM_CLASSES, (NUM_LABELED,)),
        x_index=torch.arange(NUM_LABELED),
        u={"strong": torch.randn(BATCH_UNLABELED, 3)},
        u_index=torch.randperm(NUM_UNLABELED)[:BATCH_UNLABELED],
    )


def make_logits(generator: torch.Generator) -> Tensor:
    """[passes, n, k]: samples of all degrees of confidence, on which the passes agree more or less."""
    confidence = torch.rand(NUM_UNLABELED, 1, generator=generator) * 4
    noise = torch.rand(NUM_UNLABELED, 1, generator=generator)
    mean = confidence * torch.randn(NUM_UNLABELED, NUM_CLASSES, generator=generator)
    return mean + noise * torch.randn(PASSES, NUM_UNLABELED, NUM_CLASSES, generator=generator)


def predicting(logits: Tensor) -> Predict:
    def predict(*, passes: int, dropout: bool) -> Iterator[tuple[Tensor, Tensor]]:
        assert passes == len(logits)
        assert dropout
        rows = torch.arange(logits.shape[1])
        yield from zip(rows.split(BATCH_UNLABELED), logits.split(BATCH_UNLABELED, 1), strict=True)

    return predict


def on_a_grid(generator: torch.Generator, *shape: int) -> Tensor:
    """Few values, all exact in float32, so that many tie with each other and with a threshold."""
    return torch.randint(9, shape, generator=generator) / 8


def test_positives_and_negatives_equal_the_literal_rules_in_300_random_cases_with_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    num_positive = num_negative = 0
    for _ in range(300):
        probs, spread, other, other_spread = (on_a_grid(generator, 12, NUM_CLASSES) for _ in range(4))
        threshold, limit = on_a_grid(generator, 2).tolist()
        target, uncertainty, positive = select_positives(probs, spread, threshold, limit)
        literal = [
            reference.positive_label(*rows, threshold, limit)
            for rows in zip(probs.tolist(), spread.tolist(), strict=True)
        ]
        assert list(zip(target.tolist(), uncertainty.tolist(), positive.tolist(), strict=True)) == literal

        negative = select_negatives(other, other_spread, target, threshold, limit)
        assert negative.tolist() == [
            reference.negative_labels(*rows, threshold, limit)
            for rows in zip(other.tolist(), other_spread.tolist(), target.tolist(), strict=True)
        ]
        num_positive, num_negative = num_positive + int(positive.sum()), num_negative + int(negative.sum())
    assert num_positive > 100
    assert num_negative > 100


@pytest.mark.parametrize("minimum", [0, 1, 3, 25])
def test_balancing_equals_the_literal_rule_in_200_random_cases_with_ties_and_empty_classes(minimum: int) -> None:
    generator = torch.Generator().manual_seed(minimum)
    sizes = set()
    for case in range(200):
        num_classes = NUM_CLASSES + case % 2  # every other case has a class that nobody is in
        target = torch.randint(NUM_CLASSES, (40,), generator=generator)
        uncertainty, positive = on_a_grid(generator, 40), torch.rand(40, generator=generator) < case / 200
        kept = balance(target, uncertainty, positive, num_classes, minimum)
        literal = reference.balanced(target.tolist(), uncertainty.tolist(), positive.tolist(), num_classes, minimum)
        assert kept.tolist() == literal
        sizes.add(int(kept.sum()))
    assert len(sizes) > 1


def test_relabel_equals_the_literal_algorithm_over_generations_where_guidance_moves_the_arg_max() -> None:
    generator = torch.Generator().manual_seed(0)
    learner = UPS(TASK, Dictated(TASK, torch.zeros(NUM_UNLABELED, NUM_CLASSES)), passes=PASSES, **OPTIONS)
    assert isinstance(learner.guidance, Dictated)
    address = learner.negative.data_ptr()
    moved = dropped = 0
    for generation in range(60):
        logits = make_logits(generator)
        probs = logits.softmax(2).mean(0)
        rectified = probs * torch.rand(probs.shape, generator=generator)
        rectified /= rectified.sum(1, keepdim=True)
        learner.guidance.table.copy_(rectified)
        selection = learner.relabel(predicting(logits), generation % 6)

        literal = reference.relabel(logits.transpose(0, 1).tolist(), rectified.tolist(), generation % 6, **OPTIONS)
        assert dict(zip(selection.rows.tolist(), selection.labels.tolist(), strict=True)) == literal.positive
        assert learner.negative.tolist() == literal.negative
        assert selection.pool is not None
        assert selection.pool.tolist() == literal.pool
        unbalanced = reference.relabel(logits.transpose(0, 1).tolist(), rectified.tolist(), 99, **OPTIONS)
        moved += int((probs.argmax(1) != rectified.argmax(1)).sum())
        dropped += len(unbalanced.positive) - len(literal.positive)
    assert learner.negative.data_ptr() == address
    assert moved > 100
    assert dropped > 10


def test_the_first_balanced_generations_train_on_balanced_labels_and_no_later_one() -> None:
    logits = torch.zeros(PASSES, NUM_UNLABELED, NUM_CLASSES)
    logits[:, :, 0] = 9.0
    logits[:, :2, 1:3] = 20 * torch.eye(2)  # rows 0 and 1 are classes 1 and 2, nobody is class 3
    learner = UPS(TASK, NoGuidance(TASK), passes=PASSES, balanced_generations=3, balance_minimum=5)
    sizes = [len(learner.relabel(predicting(logits), generation).rows) for generation in range(4)]
    assert sizes == [2 + 5, 2 + 5, NUM_UNLABELED, NUM_UNLABELED]  # for generations 1, 2, 3 and 4


def test_the_guidance_sees_each_chunks_mean_prediction_once_and_none_in_a_step() -> None:
    logits = make_logits(torch.Generator().manual_seed(0))
    guidance = Dictated(TASK, torch.full((NUM_UNLABELED, NUM_CLASSES), 0.25))
    learner = UPS(TASK, guidance, passes=PASSES)
    learner(Recorded(), make_batch())
    assert guidance.seen == []
    learner.relabel(predicting(logits.requires_grad_()), 0)
    torch.testing.assert_close(torch.cat([probs for probs, _ in guidance.seen]), logits.softmax(2).mean(0))
    assert not any(probs.requires_grad for probs, _ in guidance.seen)
    assert torch.cat([rows for _, rows in guidance.seen]).tolist() == list(range(NUM_UNLABELED))


def test_prg_counts_the_moves_between_generations() -> None:
    guidance = PRG(TASK, window=4, empty_row="identity")  # 30 rows in batches of 8: a pass is 4 batches
    learner = UPS(TASK, guidance, passes=PASSES)
    passes = [make_logits(torch.Generator().manual_seed(seed)) for seed in range(3)]
    classes = [logits.softmax(2).mean(0).argmax(1).tolist() for logits in passes]
    for generation, logits in enumerate(passes):
        learner.relabel(predicting(logits), generation)
    moves = torch.zeros(NUM_CLASSES, NUM_CLASSES)
    for before, after in zip(classes[1], classes[2], strict=True):
        moves[before, after] += before != after
    assert torch.equal(guidance.transitions, moves)
    assert moves.sum() > 0


def test_the_loss_equals_the_literal_formula() -> None:
    batch, model, learner = make_batch(), Recorded(), UPS(TASK, NoGuidance(TASK))
    learner.negative[::2] = torch.rand(NUM_UNLABELED // 2, NUM_CLASSES) < 0.4
    negative = learner.negative[batch.u_index]
    assert set(negative.sum(1).tolist()) >= {0, 1, 2}
    step = learner(model, batch)

    labeled = sum(map(cross_entropy, model.linear(batch.x).tolist(), batch.y.tolist())) / NUM_LABELED
    unlabeled = reference.negative_loss(model.linear(batch.u["strong"]).tolist(), negative.tolist())
    assert unlabeled > 0
    assert step.loss.item() == pytest.approx(labeled + unlabeled, rel=1e-5)
    assert {name: value.item() for name, value in step.logs.items()} == pytest.approx(
        {"loss/labeled": labeled, "loss/unlabeled": unlabeled, "negative_rate": negative.any(1).float().mean().item()},
        rel=1e-5,
    )


def test_without_negative_labels_the_loss_is_that_of_the_labelled_samples() -> None:
    batch, model, learner = make_batch(), Recorded(), UPS(TASK, NoGuidance(TASK))
    step = learner(model, batch)
    assert torch.equal(step.loss, F.cross_entropy(model.linear(torch.cat([batch.x, batch.u["strong"]]))[:6], batch.y))
    assert step.logs["negative_rate"] == 0


def test_a_certain_prediction_of_a_negative_class_costs_a_finite_loss() -> None:
    batch, model, learner = make_batch(), Recorded(), UPS(TASK, NoGuidance(TASK))
    learner.negative[:, 0] = True
    with torch.no_grad():
        model.linear.bias.copy_(torch.tensor([200.0, 0, 0, 0]))
    step = learner(model, batch)
    step.loss.backward()
    assert step.logs["loss/unlabeled"].item() == pytest.approx(16.118096, rel=1e-6)  # -log 1e-7
    assert model.linear.weight.grad is not None
    assert model.linear.weight.grad.isfinite().all()


def test_a_step_makes_one_forward_and_no_pseudo_label() -> None:
    batch, model, learner = make_batch(), Recorded(), UPS(TASK, NoGuidance(TASK))
    learner.negative.fill_(True)
    learner(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, batch.u["strong"]]))
    assert learner.pseudo_labels.tolist() == [-1] * BATCH_UNLABELED


def test_a_step_reads_no_value_back() -> None:
    with FakeTensorMode():
        learner, model = UPS(TASK, NoGuidance(TASK)), Recorded()
        batch = make_batch()._replace(u_index=torch.arange(BATCH_UNLABELED))
        learner(model, batch).loss.backward()
        assert model.linear.weight.grad is not None


def test_negative_labels_survive_a_resume() -> None:
    learner, resumed, model = UPS(TASK, NoGuidance(TASK)), UPS(TASK, NoGuidance(TASK)), Recorded()
    learner.negative.copy_(torch.rand(NUM_UNLABELED, NUM_CLASSES) < 0.4)
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    step, again = learner(model, make_batch()), resumed(model, make_batch())
    assert step.logs["loss/unlabeled"] > 0
    assert torch.equal(step.loss, again.loss)


def test_a_model_without_dropout_is_refused() -> None:
    learner = UPS(TASK, NoGuidance(TASK))
    learner.prepare(MLP((3,), NUM_CLASSES, dropout=0.3))
    with pytest.raises(ValueError, match=r"--set model\.dropout=0\.3"):
        learner.prepare(MLP((3,), NUM_CLASSES))


@pytest.mark.parametrize(
    "options",
    [
        {"generations": 0},
        {"passes": 1},
        {"positive_threshold": 1.5},
        {"negative_threshold": -0.1},
        {"positive_uncertainty": 0.0},
        {"negative_uncertainty": -1.0},
        {"negative_temperature": 0.0},
        {"balanced_generations": -1},
        {"balance_minimum": -1},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        UPS(TASK, NoGuidance(TASK), **options)


def test_on_digits_selected_labels_are_more_often_right_than_predictions_and_negatives_nearly_always() -> None:
    torch.manual_seed(0)
    images, targets = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images, targets = images.float().view(-1, 1, 8, 8) / 16, targets.long()
    order = torch.randperm(len(images))
    labeled, unlabeled = order[:60], order[60:]
    task = Task(10, len(unlabeled), targets[labeled], batch_labeled=60, batch_unlabeled=60)
    learner = UPS(task, NoGuidance(task), balanced_generations=0)
    model = SmallCNN((1, 8, 8), 10, width=8, dropout=0.3)
    learner.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(40):
        rows = torch.randperm(len(unlabeled))[:60]
        u = {"strong": images[unlabeled[rows]]}
        step = learner(model, Batch(images[labeled], targets[labeled], torch.arange(60), u, rows))
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()

    def predict(*, passes: int, dropout: bool) -> Iterator[tuple[Tensor, Tensor]]:
        model.eval()
        for layer in model.modules():
            layer.training = dropout and isinstance(layer, nn.Dropout)
        for rows in torch.arange(len(unlabeled)).split(task.batch_unlabeled):
            yield rows, torch.stack([model(images[unlabeled[rows]]) for _ in range(passes)])

    selection = learner.relabel(predict, 0)
    with torch.no_grad():
        accuracy = (model.eval()(images[unlabeled]).argmax(1) == targets[unlabeled]).float().mean()
    precision = (selection.labels == targets[unlabeled][selection.rows]).float().mean()
    assert len(selection.rows) > 100
    assert precision > accuracy + 0.05
    assert selection.pool is not None
    assert len(selection.pool) > 100
    wrong = learner.negative[torch.arange(len(unlabeled)), targets[unlabeled]].sum()
    assert wrong / learner.negative.sum() < 0.01
