"""The runs that the crash test kills: every kind of run that keeps a state of its own, each as short as it can be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import mnar.bench.parallel
import mnar.own_data.portfolio_run
import mnar.own_data.train
import mnar.report
import mnar.run.recorder
from mnar.atomic_write import write_atomically
from mnar.run.file_names import CONFIG, PORTFOLIO, REPORT
from tests.bench.benches import OTHER, RECIPE, train_here
from tests.support.command import as_options
from tests.support.methods import SURE_UPS
from tests.support.own_data_files import write_table
from tests.support.tiny import TINY

OUT = "out"
SHORT = (*TINY, "train.eval_every=2", "train.save_every=1")
SMALL_NETWORK = ("train.save_every=1", "train.lr=0.01", "engine.device=cpu")
ON_TABLE = (
    "engine.device=cpu",
    "protocol.gamma=5",
    "model.hidden=[8]",
    "train.batch_labeled=16",
    "train.eval_every=2",
    "train.save_every=2",
    "train.validation=0",
    "learner.pretraining_epochs=1",
    "learner.bounded=false",
)


class Method(NamedTuple):
    """A command that writes the folder `out`, and how it is continued after a kill."""

    name: str
    arguments: tuple[str, ...]  # in which {data} stands for the folder of the data
    is_bench: bool = False

    def start(self, data: Path) -> list[str]:
        """The command that starts the run."""
        return [argument.format(data=data) for argument in self.arguments]

    def continuation(self, folder: Path, data: Path) -> list[str]:
        """The command that a user gives after the kill: --resume, or the same command again."""
        has_begun = any((folder / OUT / name).exists() for name in (CONFIG, PORTFOLIO))
        return ["train", "--resume", OUT] if has_begun and not self.is_bench else self.start(data)


def _run(name: str, *arguments: str, settings: tuple[str, ...] = ()) -> Method:
    return Method(name, ("train", *arguments, *as_options(settings), "--out", OUT))


DIGITS, OWN_TABLE = ("--dataset", "digits"), ("{data}/table.csv", "--label", "kind")
FULL_TABLE = ("--dataset", "npz", "--data", "{data}/table.npz")
METHODS = (
    _run("fixmatch + prg", *DIGITS, "--guidance", "prg", "--iterations", "3", settings=SHORT),
    _run("crest", *DIGITS, "--guidance", "crest", "--iterations", "2", settings=(*SHORT, "guidance.generations=2")),
    _run("ups", *DIGITS, "--iterations", "2", settings=(*SHORT, *SURE_UPS, "learner.generations=2")),
    _run("vime", *FULL_TABLE, "--learner", "vime", "--guidance", "prg", "--iterations", "2", settings=ON_TABLE),
    _run("portfolio", *OWN_TABLE, "--fast"),
    _run("own network", *OWN_TABLE, "--learner", "pseudo_label", "--iterations", "2", settings=SMALL_NETWORK),
    Method(
        "bench",
        ("bench", RECIPE, OTHER, "--seeds", "1", "--iterations", "2", *as_options(SHORT), "--out", OUT),
        is_bench=True,
    ),
)


def write_data(folder: Path) -> None:
    """Write the data that the commands read."""
    write_table(folder / "table.csv", ((8, 6, 4), (5, 5, 8)))
    labels = np.repeat(np.arange(3), 20)
    rows = np.random.default_rng(0).uniform(0, 1, (60, 6)) + labels[:, None]
    np.savez(folder / "table.npz", x_train=rows, y_train=labels, x_test=rows, y_test=labels)


def save_time() -> None:
    """Write reports of one line, because a real one takes seconds, and train the runs of a bench in this process.

    The clock of the runs stands still, so that the results of a bench, which contain times, can be compared.
    """
    train_here(pytest.MonkeyPatch())
    mnar.run.recorder.time = SimpleNamespace(monotonic=lambda: 0.0)  # type: ignore[assignment]
    for module in (mnar.report, mnar.bench.parallel, mnar.own_data.train):
        module.write_run_report = _write_short_report  # type: ignore[attr-defined]
    for module in (mnar.own_data.portfolio_run, mnar.own_data.train):
        module.write_own_data_report = _write_short_report  # type: ignore[attr-defined]


def _write_short_report(folder: Path, page: object = None, *, name: str = REPORT) -> None:
    write_atomically(folder / name, "a report\n")
