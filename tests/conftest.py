"""Small runs on real digits, shared by all tests."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mnar.bench.parallel
import mnar.own_data.train
import mnar.report
import mnar.run
from mnar.config import RunConfig
from mnar.datasets import digits
from mnar.recipes import configure
from mnar.training.trainer import Interrupted, Trainer
from mnar.types import DataSet
from tests.support.tiny import TINY
from tests.support.watching import Watching

# The tests' tensors are small, and two threads on two busy cores wait for each other.
torch.set_num_threads(1)
# A shell lets the processes that it starts in the background ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

Configure = Callable[..., RunConfig]
pytest_plugins = ["tests.bench.benches", "tests.support.ray_cluster", "tests.trained.runs"]  # their fixtures


@pytest.fixture(scope="session")
def tiny() -> Configure:
    """A run of 40 steps on digits that takes a quarter of a second; takes settings as --set does."""

    def tiny_config(*settings: str, iterations: int = 40) -> RunConfig:
        return configure(dataset="digits", iterations=iterations, settings=[*TINY, *settings])

    return tiny_config


@pytest.fixture(scope="session")
def digits_data() -> DataSet:
    return digits()


@pytest.fixture
def trainer_of(tiny: Configure, digits_data: DataSet) -> Callable[..., Trainer]:
    """The trainer of such a run, without a folder."""

    def make(*settings: str, iterations: int = 40) -> Trainer:
        config = tiny(*settings, iterations=iterations)
        return mnar.run.make_trainer(config, digits_data, mnar.run.make_split(config, digits_data))

    return make


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the report, which takes a second per run; the tests of the command line look at a drawn report."""
    for module in (mnar.report, mnar.bench.parallel, mnar.own_data.train):
        monkeypatch.setattr(module, "write_run_report", lambda folder, **options: None)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, tiny: Configure) -> Path:
    """The run that every interrupted one must equal. For reading only."""
    folder = tmp_path_factory.mktemp("runs") / "straight"
    mnar.run.new_run(tiny(), folder)
    return folder


@pytest.fixture(scope="session")
def stopped_once(tmp_path_factory: pytest.TempPathFactory, tiny: Configure) -> Path:
    """A run stopped at step 31: evaluated at 10, 20 and 30, saved at 31, and at 28 before that."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted):
        mnar.run.new_run(tiny(), folder, Watching(signal_at=30))
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))
