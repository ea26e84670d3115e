"""Tracking against PRG, which it tracks like, and against no guidance, which it trains like."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mnar.guidances import PRG, Tracking
from mnar.training.trainer import Trainer, train
from mnar.types import Task
from tests.support.drifting import drifting_batches
from tests.support.watching import Notes

TASK = Task(num_classes=4, num_unlabeled=30, batch_unlabeled=12)


def test_tracking_counts_the_transitions_that_prg_counts_and_returns_what_it_was_given() -> None:
    tracking, prg = Tracking(TASK, window=5), PRG(TASK, window=5)
    for probs, index in drifting_batches(20, num_classes=4, num_unlabeled=30, largest=12):
        prg(probs, index)
        assert torch.equal(tracking(probs, index), probs)
        assert torch.equal(tracking.transitions, prg.transitions)
    assert tracking.transitions.sum() > 0
    assert torch.equal(tracking.matrices()["transitions"], prg.transitions)
    assert tracking.logs() == {"transitions": prg.transitions.sum()}


def test_a_run_that_tracks_has_the_losses_and_scores_of_one_without_guidance(
    trainer_of: Callable[..., Trainer],
) -> None:
    plain, tracked = Notes(), Notes()
    train(trainer_of("guidance.name=none", iterations=20), plain)
    train(trainer_of("guidance.name=tracking", iterations=20), tracked)
    assert tracked.lines[-1]["train"].pop("guidance/transitions") > 0
    assert tracked.lines[-1]["matrices"].pop("transitions")
    for before, after in zip(plain.lines, tracked.lines, strict=True):
        after["train"].pop("guidance/transitions", None)
        after.get("matrices", {}).pop("transitions", None)
        assert after == before
