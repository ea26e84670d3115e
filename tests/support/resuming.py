"""A run that is stopped and resumed, against one that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mnar.training.trainer import Interrupted, Trainer, train
from tests.support.equality import assert_same
from tests.support.watching import Notes, loaded


def assert_resumes_exactly(make_trainer: Callable[[], Trainer], *, stop_after: int) -> None:
    """Stop a run after a step, resume it with a new trainer, and compare its last state with that of a straight run."""
    straight, stopped, resumed = Notes(), Notes(stop_after=stop_after), Notes()
    train(make_trainer(), straight)
    with pytest.raises(Interrupted):
        train(make_trainer(), stopped)
    trainer = make_trainer()
    trainer.load_state_dict(loaded(stopped.saved[stop_after]))
    train(trainer, resumed)
    last = trainer.options.iterations
    assert_same(loaded(resumed.saved[last]), loaded(straight.saved[last]))
