"""Kill a process at the worst moment, e.g. halfway through a write."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import mnar.run
from mnar.config import RunConfig
from mnar.own_data import portfolio_run
from mnar.own_data.inputs import samples_of
from mnar.own_data.portfolio_run import PortfolioConfig, PortfolioDisplay
from mnar.run import checkpoint
from mnar.run.file_names import CONFIG, STATE
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display, RunRecorder
from mnar.run.stopping import StopFlag
from mnar.training.trainer import Interrupted, Trainer, train
from mnar.types import Selection

NEVER = 0
MOST_KILLS = 12
LONGEST_LIFE = 0.25  # seconds, about the time of a whole run
MOST_MOMENTS = 80  # a checkpoint has about 30


class Trap:
    """Calls `spring` at the count-th moment. Moments are before, during and after each call that changes the disk."""

    def __init__(self, count: int, spring: Callable[[], None]) -> None:
        self.count, self.spring, self.moments = count, spring, 0

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.count:
            self.spring()

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        opens = real is io.open

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.moment()
            result = real(*args, **kwargs)
            self.moment()
            return HalfByHalf(result, self) if opens else result

        return wrapped

    def set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (io, "open")):
            monkeypatch.setattr(owner, name, self.around(getattr(owner, name)))


class HalfByHalf:
    """A file that writes every content in two halves, with a moment of the trap between the halves."""

    def __init__(self, file: Any, trap: Trap) -> None:
        self.file, self.trap = file, trap

    def write(self, content: Any) -> None:
        half = len(content) // 2
        self.file.write(content[:half])
        self.file.flush()
        self.trap.moment()
        self.file.write(content[half:])

    def __enter__(self) -> HalfByHalf:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self.file)

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def was_killed(child: int) -> bool:
    """Wait for a child process; return whether a signal killed it. Otherwise it must have ended without an error."""
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def in_a_child(action: Callable[[], None]) -> int:
    """Start `action` in a fork of this process; return the process id of the fork."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


class DyingBetweenGenerations(RunRecorder):
    """Ends a generation many times, each time in a copy of the folder and in a process that is killed one moment later.

    The last process survives: it saves the first checkpoint of the next generation. `left` has all the folders.
    """

    def __init__(self, folder: Path, trainer: Trainer, class_names: tuple[str, ...], first_step: int) -> None:
        super().__init__(folder, trainer, class_names, first_step, Display(), StopFlag())
        self.trainer, self.left = trainer, list[Path]()

    def generation(self, number: int, selection: Selection | None) -> None:
        alive, died = self.folder, True
        while died:
            self.left.append(Path(shutil.copytree(alive, alive.with_name(f"{alive.name}-{len(self.left)}"))))
            self.folder = self.left[-1]
            died = was_killed(in_a_child(partial(self._go_on, number, selection)))
        raise Interrupted

    def _go_on(self, number: int, selection: Selection | None) -> None:
        Trap(len(self.left), kill_me).set(pytest.MonkeyPatch())
        super().generation(number, selection)
        self.save(int(self.trainer.steps_done), self.trainer.state_dict(), must=False)


def die_between_generations(folder: Path) -> list[Path]:
    """Resume a run to the end of a generation and kill it there; return one folder per moment of the kill.

    Call this function in a new process, for the reason that `run_under_fire` gives.
    """
    torch.set_num_threads(1)
    config = RunFolder(folder).config()
    data = mnar.run.load_data(config)
    trainer = mnar.run.make_trainer(config, data, mnar.run.make_split(config, data))
    trainer.load_state_dict(checkpoint.load(folder / STATE)[0])
    recorder = DyingBetweenGenerations(folder, trainer, data.class_names, int(trainer.steps_done))
    with suppress(Interrupted):
        train(trainer, recorder)
    return recorder.left


def run_under_fire(config: RunConfig, folder: Path, seed: int) -> int:
    """Train a run to its end in a series of processes that are killed at random moments; return the number of kills.

    Call this function in a new process that has not trained before, because forks of a process that has may hang.
    """
    torch.set_num_threads(1)
    data = mnar.run.load_data(config)
    mnar.run.make_trainer(config, data, mnar.run.make_split(config, data))  # imports the modules that every child needs
    dice = random.Random(seed)

    def go_on(moment: int) -> None:
        Trap(moment, kill_me).set(pytest.MonkeyPatch())
        if (folder / CONFIG).exists():
            mnar.run.resume_run(folder)
        else:
            mnar.run.new_run(config, folder)

    for kills in range(MOST_KILLS):
        moment = dice.randint(1, MOST_MOMENTS) if kills % 2 else NEVER
        child = in_a_child(partial(go_on, moment))
        if moment == NEVER:
            time.sleep(dice.uniform(0, LONGEST_LIFE))
            os.kill(child, signal.SIGKILL)
        if not was_killed(child):
            return kills
    assert not was_killed(in_a_child(partial(go_on, NEVER)))
    return MOST_KILLS


def portfolio_under_fire(config: PortfolioConfig, folder: Path, seed: int) -> int:
    """Do with a run of the portfolio what `run_under_fire` does with a network; return the number of kills."""
    portfolio_run.write_own_data_report = lambda folder, page: None  # takes a second
    data = portfolio_run.read_own_data(config)
    samples_of(data, config.seed)  # imports modules that every child needs
    dice = random.Random(seed)

    def go_on(moment: int) -> None:
        Trap(moment, kill_me).set(pytest.MonkeyPatch())
        display = PortfolioDisplay()
        if portfolio_run.is_portfolio_run(folder):
            portfolio_run.resume_portfolio_run(folder, display)
        else:
            portfolio_run.new_portfolio_run(config, folder, display, data)

    for kills in range(MOST_KILLS):
        if not was_killed(in_a_child(partial(go_on, dice.randint(1, MOST_MOMENTS)))):
            return kills
    assert not was_killed(in_a_child(partial(go_on, NEVER)))
    return MOST_KILLS
