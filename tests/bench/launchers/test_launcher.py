"""What holds for every launcher, without Ray and without submitit."""

from __future__ import annotations

import importlib
import os
import re
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mnar
from mnar.bench import launchers, parallel
from mnar.bench.child_process import ProcessKilled
from mnar.bench.launchers import launcher as launcher_module
from mnar.bench.launchers import make_launcher, worker
from mnar.bench.launchers.launcher import RemoteJob, WorkerLost, check_device
from mnar.bench.launchers.worker import Order, SharedFolder, Supervisor
from mnar.bench.parallel import MOST_LOSSES, run_all
from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run.file_names import MODEL
from mnar.training.trainer import Interrupted
from tests.bench.benches import (
    LONG,
    RECIPE,
    SELDOM_SAVED,
    Clock,
    Command,
    arguments_for,
    bench_in,
    ignore_progress,
    metrics_below,
)
from tests.support.command import wait_for

CONFIG = configure(recipe=RECIPE, iterations=100, settings=SELDOM_SAVED)


class Lost:
    """A job that ends with an error at once. Before, it moves the run on by a number of steps."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def has_ended(self) -> bool:
        return True

    def terminate(self) -> None:
        raise AssertionError("the job has ended")


class Unreliable:
    """A launcher whose workers are lost, each time after the saved steps that `saved` lists, then work."""

    pause = 0.0

    def __init__(self, steps: dict[Path, int], saved: list[int]) -> None:
        self.steps, self.saved = steps, list(saved)
        self.started: list[Path] = []
        self.num_submits = 0

    def check(self, configs: Collection[RunConfig], seconds: float | None) -> None: ...

    @contextmanager
    def opened(self, folder: Path) -> Iterator[None]:
        yield

    def num_at_once(self, configs: Collection[RunConfig], asked: int | None, seconds: float | None) -> int:
        return len(configs)

    def start(self, config: RunConfig, path: Path, seconds: float | None, with_report: bool) -> Lost:
        self.started.append(path)
        if not self.saved:
            self.steps[path] = config.train.iterations
            return Lost(None)
        self.steps[path] = self.saved.pop(0)
        return Lost(WorkerLost("the machine is gone"))

    def submit(self) -> None:
        self.num_submits += 1


@pytest.mark.parametrize(
    ("saved", "num_starts", "fails"),
    [
        ([], 1, False),
        ([10], 2, False),
        ([0] * (MOST_LOSSES - 1), MOST_LOSSES, False),
        ([0] * MOST_LOSSES, MOST_LOSSES, True),
        ([10, 20, 30, 40, 50, 60], 7, False),
        ([10, 10, 20, 20, 30, 30], 7, False),
        ([10, 20, *[20] * (MOST_LOSSES - 1)], MOST_LOSSES + 1, True),
    ],
)
def test_a_lost_run_starts_again_until_it_was_lost_three_times_at_the_same_saved_step(
    saved: list[int], num_starts: int, fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: dict[Path, int] = {}
    monkeypatch.setattr(parallel, "steps_done", lambda path, config: steps.get(path, 0))
    unreliable, failures = Unreliable(steps, saved), dict[Path, Exception]()
    run_all(
        {tmp_path / "run": CONFIG},
        ignore_progress,
        num_processes=1,
        on_failure=failures.__setitem__,
        launcher=unreliable,
    )
    assert len(unreliable.started) == num_starts
    assert [str(error) for error in failures.values()] == ["the machine is gone"] * fails


def test_runs_that_start_together_are_submitted_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm makes one array of them."""
    launched = Unreliable({}, [])
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(launched, "submit", lambda: seen.append((len(seen), len(launched.started))))
    run_all({tmp_path / str(i): CONFIG for i in range(5)}, ignore_progress, num_processes=5, launcher=launched)
    assert seen[0] == (0, 5)


class Ended(RemoteJob):
    """A job that is done, with an outcome."""

    def __init__(self, path: Path, outcome: Exception | None, *, has_time_limit: bool = False) -> None:
        super().__init__(path, has_time_limit=has_time_limit)
        self.result, self.num_cancels = outcome, 0

    def is_done(self) -> bool:
        return True

    def outcome(self) -> Exception | None:
        return self.result

    def cancel(self) -> None:
        self.num_cancels += 1


@pytest.mark.parametrize(
    ("outcome", "has_time_limit", "was_terminated", "kind"),
    [
        (ValueError("class 3 has no sample"), False, False, ValueError),
        (ProcessKilled("killed by signal 9"), False, False, WorkerLost),
        (Interrupted("stopped"), False, False, WorkerLost),
        (Interrupted("the time is up"), True, False, Interrupted),
        (Interrupted("stopped"), False, True, Interrupted),
        (WorkerLost("gone"), False, False, WorkerLost),
    ],
)
def test_only_a_kill_or_a_signal_that_the_bench_did_not_send_counts_as_the_loss_of_a_worker(
    outcome: Exception, has_time_limit: bool, was_terminated: bool, kind: type[Exception], tmp_path: Path
) -> None:
    job = Ended(tmp_path, outcome, has_time_limit=has_time_limit)
    for _ in range(3 * was_terminated):
        job.terminate()
    assert job.num_cancels == was_terminated, "a second signal could end the run before it has saved"
    assert job.has_ended()
    assert type(job.error) is kind
    assert str(outcome) in str(job.error)


def test_a_finished_run_counts_when_its_model_appears_and_fails_if_it_never_appears(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    monkeypatch.setattr(launcher_module, "time", clock)
    late, never = Ended(tmp_path / "late", None), Ended(tmp_path / "never", None)
    assert not late.has_ended()
    assert not never.has_ended()
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / MODEL).touch()
    clock.sleep(59)
    assert (late.has_ended(), late.error) == (True, None)
    assert not never.has_ended()
    clock.sleep(2)
    assert never.has_ended()
    assert re.search(r"never/model\.safetensors does not appear .* that all workers share", str(never.error))


def order_in(folder: Path, config: RunConfig, **changes: Any) -> Order:
    order = Order(config, folder / "run", None, False, SharedFolder.mark(folder), Path.cwd())
    return replace(order, **changes)


@pytest.mark.parametrize("damage", ["no folder", "another folder"])
def test_a_worker_that_does_not_share_the_folder_refuses_the_run_and_writes_nothing(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    monkeypatch.setattr(worker, "time", clock)
    order = order_in(tmp_path, CONFIG)
    if damage == "no folder":
        (tmp_path / worker.TOKEN).unlink()
    else:
        (tmp_path / worker.TOKEN).write_text("of another bench")
    before = sorted(tmp_path.rglob("*"))
    error = Supervisor(order)()
    assert isinstance(error, ValueError)
    assert re.search(rf"does not share the folder {tmp_path} .* choose --out on a file system that all", str(error))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_worker_with_another_version_refuses_the_run(tmp_path: Path) -> None:
    shared = replace(SharedFolder.mark(tmp_path), version="0.0.1")
    error = Supervisor(order_in(tmp_path, CONFIG, shared=shared))()
    assert f"has mnar {mnar.__version__}, but the bench was started with mnar 0.0.1" in str(error)


def test_a_signal_to_the_supervisor_saves_the_run_and_the_next_supervisor_finishes_it_with_equal_metrics(
    undisturbed: Path, tmp_path: Path
) -> None:
    path, config = next(iter(bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs.items()))
    order = order_in(tmp_path, config, path=path)

    def interrupt() -> None:
        wait_for((path / "metrics.jsonl").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert isinstance(Supervisor(order)(), Interrupted)
    assert 0 < parallel.steps_done(path, config) < LONG
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert Supervisor(order)() is None
    name = str((path / "metrics.jsonl").relative_to(tmp_path))
    assert metrics_below(tmp_path)[name] == metrics_below(undisturbed)[name]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("spark", [], "the launcher 'spark' is not known; choose one of local, ray, slurm"),
        ("local", ["num_gpus=1"], "--launcher-option num_gpus=1 is not for local processes"),
        ("ray", ["num_gpus"], "--launcher-option num_gpus is not NAME=VALUE"),
        ("ray", ["=1"], "--launcher-option =1 is not NAME=VALUE"),
        ("ray", ["address=[1"], "the value is not YAML"),
    ],
)
def test_a_wrong_launcher_option_is_an_error_that_names_it(name: str, options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_launcher(name, options)


def test_the_launcher_local_is_the_default() -> None:
    assert make_launcher("local") is None


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_an_error_with_the_command_that_installs_it_and_nothing_is_written(
    name: str, package: str, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(launchers, "find_spec", lambda wanted: None if wanted == package else find(wanted))
    outcome = command(RECIPE, *arguments_for(tmp_path / "out"), "--launcher", name)
    assert outcome.code == 1
    text = " ".join(outcome.errors.split())
    assert (
        f"needs the package {package}; install it with pip install 'mnar[{name}]', or choose --launcher local" in text
    )
    assert not (tmp_path / "out").exists()


def test_a_gpu_with_a_number_is_refused_because_the_cluster_chooses_the_gpu() -> None:
    check_device(configure(recipe=RECIPE, settings=["engine.device=cuda"]))
    with pytest.raises(ValueError, match=r"engine.device is cuda:1, .* use --set engine.device=cuda"):
        check_device(configure(recipe=RECIPE, settings=["engine.device=cuda:1"]))
