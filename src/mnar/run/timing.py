"""How long a run takes: an estimate while it runs, and the number of steps that fit into a given time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from mnar import distributed
from mnar.config import RunConfig
from mnar.run.assemble import make_split, make_trainer
from mnar.training.engine import GraphedStep
from mnar.training.trainer import Trainer
from mnar.types import DataSet

STEPS_BEFORE = 2  # the first steps are slower: they allocate memory and choose kernels
FEWEST_TIMED, SHORTEST_TIMING = 5, 2.0  # steps and seconds after which an estimate is made
MOST_TIMED = 100  # steps
NUM_EVALUATIONS = 20  # of a run on own data
MARGIN = 0.9  # share of the given time that is planned; checkpoints, the model and the report take the rest
MOST_MINUTES = 10**6  # almost two years
FEWEST_ITERATIONS = 20


class Estimate:
    """Estimates the time that a run still takes from the time of its first steps.

    images_until    the number of samples that the steps up to a step process; batches may grow during the training
    """

    def __init__(
        self,
        iterations: int,
        first_step: int,
        images_until: Callable[[int], int] = lambda step: step,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.iterations, self.first_step, self.clock = iterations, first_step, clock
        self.images_until = images_until
        self._began: tuple[int, float] | None = None

    def seconds_left(self, step: int) -> float | None:
        """Seconds until the last step, or None as long as too few steps were timed."""
        if self._began is None:
            if step >= self.first_step + STEPS_BEFORE:
                self._began = step, self.clock()
            return None
        began, seconds = self._began[0], self.clock() - self._began[1]
        if step - began < FEWEST_TIMED or seconds < SHORTEST_TIMING:
            return None
        timed, left = self.images_until(step) - self.images_until(began), self.images_until(self.iterations)
        return seconds / timed * (left - self.images_until(step))


def in_words(seconds: float) -> str:
    """A rounded duration, e.g. "12 minutes"."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


def iterations_within(config: RunConfig, data: DataSet, minutes: float) -> int:
    """The number of training steps that fit into `minutes`, evaluations included, measured with a few steps.

    The caller configures the run again with this number, because other options depend on it (`default_sections`).
    """
    if not 0 < minutes < MOST_MINUTES:
        raise ValueError(
            f"minutes is {minutes}; the time for training must be below {MOST_MINUTES:,} minutes, and it must be "
            "positive. Choose e.g. --minutes 5"
        )
    per_step, per_evaluation = time_of_steps(config, data)
    seconds = 60 * minutes * MARGIN - NUM_EVALUATIONS * per_evaluation
    return max(FEWEST_ITERATIONS, int(seconds / per_step))


def time_of_steps(config: RunConfig, data: DataSet) -> tuple[float, float]:
    """Seconds of one training step and of one evaluation, on this machine. The random state stays as it was.

    The step has the full batch size, so that a training with smaller batches at first ends in time. Several processes
    take the same number of steps, and the result is their mean.
    """
    config = replace(config, train=replace(config.train, batch_stages=(1.0,)))
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        trainer = make_trainer(config, data, make_split(config, data))
        step, take_step, began = 0, trainer.engine.step(trainer.step), time.monotonic()
        timed_from = STEPS_BEFORE + (GraphedStep.EAGER_STEPS if trainer.engine.cuda_graph else 0)
        while step < timed_from + FEWEST_TIMED or (
            step < timed_from + MOST_TIMED and distributed.any_of(time.monotonic() - began < SHORTEST_TIMING)
        ):
            if step == timed_from:
                _wait_for(trainer)
                began = time.monotonic()
            trainer.loader.seek(step)
            take_step()
            step += 1
        _wait_for(trainer)
        per_step = (time.monotonic() - began) / (step - timed_from)
        began = time.monotonic()
        trainer.evaluate(step)
        per_evaluation = time.monotonic() - began
        per_step, per_evaluation = distributed.mean(torch.tensor([per_step, per_evaluation])).tolist()
        return per_step, per_evaluation


def _wait_for(trainer: Trainer) -> None:
    """Wait until the device has finished its work."""
    if trainer.engine.device.type == "cuda":
        torch.cuda.synchronize(trainer.engine.device)
