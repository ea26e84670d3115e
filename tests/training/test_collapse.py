"""Recognise a run that does not learn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import roc_auc_score

from mnar.models import MLP
from mnar.training import collapse
from mnar.training.collapse import CHECKED_AT, Collapsed, Signs, is_due, separation, signs_of, verdict, what_is_wrong
from mnar.training.trainer import Trainer, train
from tests.support.equality import assert_same
from tests.support.watching import Notes

MakeTrainer = Callable[..., Trainer]
HEALTHY = Signs(accuracy=0.8, largest_class=0.3, top_prediction=0.35, separation=0.95)
DEAD = Signs(accuracy=0.3, largest_class=0.3, top_prediction=1.0, separation=0.5)
SLOW = Signs(accuracy=0.3, largest_class=0.3, top_prediction=1.0, separation=0.75)  # one class, but a ranking


@pytest.mark.parametrize("num_classes", [2, 5])
def test_separation_equals_the_roc_area_of_sklearn_also_with_ties(num_classes: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(60, num_classes).mul(3).round()  # rounded, so that there are ties
    y = torch.arange(60) % num_classes
    expected = [roc_auc_score(y == label, logits[:, label]) for label in range(num_classes)]
    assert separation(logits, y) == pytest.approx(sum(expected) / num_classes)


def test_separation_is_a_half_for_a_constant_model_and_unknown_for_a_single_class() -> None:
    y = torch.tensor([0, 1, 1, 2])
    assert separation(torch.tensor([[3.0, -1.0, 0.0]]).expand(4, 3), y) == 0.5
    assert math.isnan(separation(torch.randn(4, 3), torch.ones(4, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("signs", "loss", "step"),
    [
        (HEALTHY, 1.0, 50),
        (SLOW, 2.2, 50),  # skewed labels: training starts with the largest class
        (SLOW, None, 500),
        (DEAD, 2.2, 50),  # 5 % of the steps are too early for this claim
        (DEAD, 2.2, 19),
        (HEALTHY._replace(separation=math.nan), 1.0, 1000),  # a single class
        (HEALTHY, 5.0, 50),  # a spike, but the model ranks the labels well
    ],
)
def test_a_healthy_or_slow_run_gives_no_verdict(signs: Signs, loss: float | None, step: int) -> None:
    assert verdict(signs, loss, num_classes=10, step=step, num_steps=1000) is None


@pytest.mark.parametrize(
    ("signs", "loss", "step", "seen"),
    [
        (HEALTHY, 99.0, 50, "the loss on the labels is 99, where guessing at random would give 2.3"),
        (SLOW, 4.0, 50, "the loss on the labels is 4, where guessing"),
        (DEAD, None, 100, "right for 30% .* predicts one class for 100% of them, where the largest class has 30%"),
        (DEAD._replace(separation=0.58), 2.3, 500, "predicts one class"),
    ],
)
def test_a_collapsed_run_gives_a_verdict_with_the_numbers(
    signs: Signs, loss: float | None, step: int, seen: str
) -> None:
    found = verdict(signs, loss, num_classes=10, step=step, num_steps=1000)
    assert found is not None
    assert re.search(seen, found)


@pytest.mark.parametrize("num_steps", [1, 7, 20, 1000])
def test_the_last_step_and_two_steps_within_the_first_tenth_are_checked(num_steps: int) -> None:
    due = [step for step in range(1, num_steps + 1) if is_due(step, num_steps)]
    assert due[-1] == num_steps
    assert sum(step <= math.ceil(num_steps / 10) for step in due) == min(2, math.ceil(num_steps / 10))
    assert len(due) <= len(CHECKED_AT)


def test_signs_of_a_model_that_always_says_the_second_class() -> None:
    model = MLP((4,), 3, hidden=())
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 1.0, 0.0])
    y = torch.tensor([0, 0, 0, 1, 2])
    signs = signs_of(model, torch.randn(5, 4), y, lambda network: network)
    assert signs == pytest.approx((0.2, 0.6, 1.0, 0.5))


@pytest.mark.parametrize("learner", ["fixmatch", "supervised", "mixmatch", "mean_teacher"])
def test_a_rate_a_hundred_times_too_large_is_found_in_the_first_tenth(trainer_of: MakeTrainer, learner: str) -> None:
    settings = (f"learner.name={learner}", "guidance.name=none", "train.collapse=fail", "train.eval_every=100")
    trainer = trainer_of(*settings, "train.lr=3", iterations=300)
    with pytest.raises(Collapsed, match="labels"):
        train(trainer, Notes())
    assert int(trainer.steps_done) <= 30


@pytest.mark.parametrize("learner", ["fixmatch", "supervised", "mixmatch", "mean_teacher"])
@pytest.mark.parametrize("iterations", [20, 150])
def test_the_default_rate_raises_no_alarm(trainer_of: MakeTrainer, learner: str, iterations: int) -> None:
    notes = Notes()
    train(trainer_of(f"learner.name={learner}", "guidance.name=none", iterations=iterations), notes)
    assert notes.collapses == {}


@pytest.mark.parametrize("settings", [(), ("guidance.name=crest", "guidance.generations=3"), ("model.dropout=0.2",)])
def test_checks_change_neither_the_evaluations_nor_the_checkpoints(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    checked, unchecked = Notes(), Notes()
    train(trainer_of(*settings), checked)
    monkeypatch.setattr(collapse, "is_due", lambda step, num_steps: False)
    train(trainer_of(*settings), unchecked)
    assert checked.lines == unchecked.lines
    assert checked.saved == unchecked.saved


def test_a_warning_leaves_the_numbers_of_a_collapsed_run_as_they_are(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned, unchecked = Notes(), Notes()
    train(trainer_of("train.lr=2"), warned)
    assert min(warned.collapses) == 10
    monkeypatch.setattr(collapse, "is_due", lambda step, num_steps: False)
    train(trainer_of("train.lr=2"), unchecked)
    assert_same(warned.lines, unchecked.lines)


def test_each_generation_is_checked_from_its_own_first_step(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(collapse, "is_due", lambda *of: asked.append(of) or False)
    train(trainer_of("guidance.name=crest", "guidance.generations=2"), Notes())
    assert asked == [(step, 20) for step in range(1, 21)] * 2


def test_a_stage_without_labels_is_not_checked(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of()
    trainer.learner.uses_labels = False  # type: ignore[misc]
    assert all(what_is_wrong(trainer, step) is None for step in range(41))
