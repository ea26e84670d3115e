"""For the tests of benches: a stand-in for a process, a clock under control, run folders that no training wrote or
that a stop left behind, and small benches as fixtures.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mnar.run
from mnar.bench import Bench, parallel
from mnar.config import RunConfig
from mnar.run.recorder import RunRecorder
from mnar.training.trainer import Interrupted
from tests.support import tiny
from tests.support.command import Outcome, run_here

RECIPE, OTHER = "digits/cadr-g20/fixmatch", "digits/cadr-g20/fixmatch+prg"
TINY = (*tiny.TINY, "train.eval_every=2", "train.save_every=3")
SELDOM_SAVED = (*TINY, "train.eval_every=10", "train.save_every=50")
ABSENT = "table1/cifar10-cadr-g20/fixmatch"  # its data set is not on this machine
STEPS = 6
LONG = 600  # steps of a run that a test has time to interrupt: more than a second on a fast machine
Command = Callable[..., Outcome]


class Here:
    """Stands in for `ChildProcess`: calls the function in this process, because a new process takes seconds to start.

    In this process, a test can also replace functions and clocks that the training uses.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self.error: Exception | None = None
        try:
            function(*arguments)
        except Exception as error:
            self.error = error

    def has_ended(self) -> bool:
        return True

    def terminate(self) -> None:
        raise AssertionError("the process has ended")


class Clock:
    """Stands in for the module `time`. The clock advances by `tick` whenever it is read, and during `sleep`."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 1000.0, tick

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make_up(
    folder: Path,
    config: RunConfig,
    accuracies: Sequence[float],
    *,
    is_done: bool = True,
    steps: Sequence[int] = (),
    scores: Sequence[dict[str, Any]] = (),
    seconds: float = 60.0,
    images_per_second: float = 1000.0,
) -> None:
    """Write a run folder with these evaluations, every `eval_every` steps or at `steps`. GM is half the accuracy.

    In a finished run, all earlier evaluations equal the first one that is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    every = config.train.eval_every
    if is_done:
        steps = sorted({*range(every, config.train.iterations + 1, every), config.train.iterations})
        num_before = len(steps) - len(accuracies)
        accuracies = [*accuracies[:1] * num_before, *accuracies]
        scores = [*scores[:1] * num_before, *scores]
    steps = steps or [every * (i + 1) for i in range(len(accuracies))]
    scores = scores or [{}] * len(accuracies)
    lines = [
        {"step": step, "test": {"accuracy": accuracy, "geometric_mean": accuracy / 2, **more}, "train": {}}
        for step, accuracy, more in zip(steps, accuracies, scores, strict=True)
    ]
    session = {"to_step": steps[-1], "seconds": seconds, "images_per_second": images_per_second}
    machine = {"mnar": "1.0", "commit": "c0ffee", "python": "3.11", "torch": "2.13", "device": "a machine"}
    counts = {part: [10] * 10 for part in ("labeled", "unlabeled", "test")}
    split = {"dataset": config.dataset.name, "class_names": list("0123456789"), **counts, "hash": "0" * 64}
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "split.json").write_text(json.dumps(split))
    (folder / "environment.json").write_text(json.dumps({**machine, "sessions": [session]}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if is_done:
        (folder / "model.safetensors").write_bytes(b"")


def stop_at(step: int, path: Path, config: RunConfig) -> None:
    """Train a run and stop it after a step, as a signal does."""
    looks = iter([False] * (step - 1) + [True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunRecorder, "stop_requested", property(lambda recorder: next(looks)))
        with pytest.raises(Interrupted, match=f"stopped at step {step} "):
            mnar.run.new_run(config, path)


def ignore_progress(share: float) -> None:
    """A progress callback for tests that do not need one."""


def bench_in(
    path: Path, *cells: str, seeds: tuple[int, ...] = (1,), iterations: int = STEPS, settings: tuple[str, ...] = TINY
) -> Bench:
    return Bench(path, cells or (RECIPE, OTHER), seeds=seeds, iterations=iterations, settings=settings)


def arguments_for(
    out: Path, *, seeds: int = 1, iterations: int = STEPS, settings: tuple[str, ...] = TINY
) -> tuple[str, ...]:
    chosen = [part for setting in settings for part in ("--set", setting)]
    return ("--out", str(out), "--seeds", str(seeds), "--iterations", str(iterations), *chosen)


def entries(out: Path) -> dict[str, dict[str, object]]:
    """The cells of results.json by name."""
    return {entry["recipe"]: entry for entry in json.loads((out / "results.json").read_text())["cells"]}


def files_below(path: Path) -> dict[str, tuple[bytes, int]]:
    """The contents and modification times of all files except locks."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def metrics_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("metrics.jsonl"))}


def train_here(patch: pytest.MonkeyPatch) -> None:
    """From now on, train in this process, draw no report and wait less."""
    impatient = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: time.sleep(0.01))
    patch.setattr(parallel, "ChildProcess", Here)
    patch.setattr(parallel, "time", impatient)
    patch.setattr(parallel, "write_run_report", lambda folder: None)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    train_here(monkeypatch)


def trained_here(bench: Bench) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        train_here(patch)
        bench.run(ignore_progress)
    return bench.folder


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_here(bench_in(tmp_path_factory.mktemp("trained") / "out", seeds=(1, 2)))


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A trained bench: two recipes with two seeds each, before `write_results`."""
    return Path(shutil.copytree(trained_once, tmp_path / "trained"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bench that every interrupted bench must equal."""
    path = tmp_path_factory.mktemp("undisturbed")
    return trained_here(bench_in(path, iterations=LONG, settings=SELDOM_SAVED))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Call `mnar bench` with these arguments, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    return lambda *arguments: run_here(capsys, monkeypatch, "bench", *arguments)
