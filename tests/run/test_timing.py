"""How long a run takes, before and while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import Display, make_split, make_trainer, new_run, timing
from mnar.run.timing import Estimate, in_words, iterations_within, time_of_steps
from mnar.training.trainer import Trainer, train
from mnar.types import DataSet
from tests.support.watching import Notes

Configure = Callable[..., RunConfig]


@pytest.mark.parametrize("first_step", [0, 100])
def test_an_estimate_is_the_time_per_step_times_the_steps_left_without_the_slow_first_ones(first_step: int) -> None:
    now = 0.0
    estimate = Estimate(1000, first_step, clock=lambda: now)
    given = {}
    for step in range(first_step + 1, first_step + 30):
        now += 60.0 if step <= first_step + 2 else 0.5
        given[step] = estimate.seconds_left(step)
    first = min(step for step, seconds in given.items() if seconds is not None)
    assert first == first_step + 7  # five steps after the first two
    assert given[first] == pytest.approx(0.5 * (1000 - first))


def test_an_estimate_of_batches_that_grow_counts_samples_and_not_steps() -> None:
    now = 0.0
    # The first 50 of 100 steps process one sample each, the others four.
    estimate = Estimate(100, 0, lambda step: step + 3 * max(0, step - 50), clock=lambda: now)
    for step in range(1, 8):
        now += 1.0
        seconds = estimate.seconds_left(step)
    assert seconds == pytest.approx(43 + 4 * 50)  # a second per sample


def test_fast_steps_are_timed_for_two_seconds() -> None:
    now = 0.0
    estimate = Estimate(10_000, 0, clock=lambda: now)
    for step in range(1, 1000):
        now += 0.01
        if estimate.seconds_left(step) is not None:
            break
    assert step == pytest.approx(2 + 2 / 0.01, abs=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "10 seconds"), (84, "80 seconds"), (95, "2 minutes"), (720, "12 minutes"), (9000, "2.5 hours")],
)
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_the_steps_that_fit_into_a_time_fit_into_it_with_their_evaluations(
    tiny: Configure, monkeypatch: pytest.MonkeyPatch, digits_data: DataSet
) -> None:
    monkeypatch.setattr(timing, "time_of_steps", lambda config, data: (0.1, 0.5))
    assert iterations_within(tiny(), digits_data, 1) == (54 - 20 * 0.5) / 0.1
    assert iterations_within(tiny(), digits_data, 1e-9) == timing.FEWEST_ITERATIONS


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_a_time_that_is_not_positive_is_refused(tiny: Configure, digits_data: DataSet, minutes: float) -> None:
    with pytest.raises(ValueError, match=r"must be positive\. Choose e\.g\. --minutes 5"):
        iterations_within(tiny(), digits_data, minutes)


def test_the_measured_time_is_that_of_steps_that_sleep(
    tiny: Configure, digits_data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self: (time.sleep(0.5), real(self)))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    per_step, per_evaluation = time_of_steps(tiny(), digits_data)
    assert 0.5 <= per_step < 0.8
    assert 0 < per_evaluation < 0.5
    assert torch.equal(torch.get_rng_state(), before)


def test_timing_a_run_does_not_change_it(tiny: Configure, digits_data: DataSet) -> None:
    lines = []
    for times in (False, True):
        if times:
            time_of_steps(tiny(), digits_data)
        notes = Notes()
        train(make_trainer(tiny(), digits_data, make_split(tiny(), digits_data)), notes)
        lines.append(notes.lines)
    assert lines[0] == lines[1]


class Estimates(Display):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def estimate(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("is_own_data", [True, False])
def test_a_run_on_own_data_estimates_its_time_once(
    tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch, is_own_data: bool
) -> None:
    monkeypatch.setattr(timing, "SHORTEST_TIMING", 0.0)
    display = Estimates()
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    np.savez(tmp_path / "table.npz", x=rng.normal(y[:, None], 1.0, (60, 3)), y=np.where(np.arange(60) < 40, y, -1))
    settings = ["engine.device=cpu", "train.batch_labeled=8", "train.batch_unlabeled=8"]
    own = configure(
        dataset="own_data", data=str(tmp_path / "table.npz"), learner="pseudo_label", iterations=30, settings=settings
    )
    new_run(own if is_own_data else tiny(), tmp_path / "run", display)
    assert len(display.seconds) == is_own_data
    assert all(seconds > 0 for seconds in display.seconds)
