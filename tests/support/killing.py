"""Ways to end a process at the worst moment."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import mnar.run
from mnar.config import RunConfig
from mnar.run import checkpoint
from mnar.run.file_names import CONFIG, STATE
from mnar.run.folder import RunFolder
from mnar.run.recorder import RunRecorder, Silent
from mnar.run.stopping import StopFlag
from mnar.training.trainer import Interrupted, Trainer, train
from mnar.types import Selection

NEVER = 0
MOST_KILLS = 12
LONGEST_LIFE = 0.25  # seconds; a whole run takes about so long
MOST_MOMENTS = 80  # a checkpoint has about 30


class Trap:
    """Springs at the count-th moment of an action: before and after each call that changes the disk, and within it."""

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
    """A file that is written in two halves, with a moment for the trap between them."""

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

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def was_killed(child: int) -> bool:
    """Wait for a child process; False when it lived to its end, which must have been a good one."""
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def in_a_child(action: Callable[[], None]) -> int:
    """Start `action` in a fork of this process; returns its process id."""
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
    """At the end of a generation, dies at every moment from which the next one is not yet saved, each in a folder."""

    def __init__(self, folder: Path, trainer: Trainer, first_step: int) -> None:
        super().__init__(folder, trainer, (), first_step, Silent(), StopFlag())
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
    """Continue with a run to the end of a generation, and be killed there: a folder for each moment, as it is left.

    For a process of its own, as is `run_under_fire`.
    """
    torch.set_num_threads(1)
    config = RunFolder(folder).config()
    data = mnar.run.load_data(config)
    trainer = mnar.run.make_trainer(config, data, mnar.run.make_split(config, data))
    trainer.load_state_dict(checkpoint.load(folder / STATE)[0])
    recorder = DyingBetweenGenerations(folder, trainer, int(trainer.steps_done))
    with suppress(Interrupted):
        train(trainer, recorder)
    return recorder.left


def run_under_fire(config: RunConfig, folder: Path, seed: int) -> int:
    """Run to the end in one process after the other, each killed at a random moment; returns how many were.

    For a process of its own that has not trained before: forks of one that has may hang.
    """
    torch.set_num_threads(1)
    data = mnar.run.load_data(config)
    mnar.run.make_trainer(config, data, mnar.run.make_split(config, data))  # imports what every child needs
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
