from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from multiprocessing import active_children
from pathlib import Path

import pytest

from mnar.bench import Bench, parallel
from mnar.config import RunConfig
from mnar.run import recorder
from mnar.run.folder import RunFolder
from mnar.training.trainer import Interrupted
from tests.bench.benches import (
    LONG,
    OTHER,
    RECIPE,
    SELDOM_SAVED,
    Clock,
    Command,
    arguments_for,
    bench_in,
    entries,
    metrics_below,
    nobody,
    train_here,
)
from tests.test_cli import stop_as_kill_does, wait_for

# Time


def test_within_minutes_runs_share_the_time_are_saved_and_end_as_if_undisturbed(
    undisturbed: Path, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(tick=0.5)
    monkeypatch.setattr(parallel, "time", clock)
    monkeypatch.setattr(recorder, "time", clock)
    bench = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED)
    began = clock.now
    bench.run(nobody, minutes=2, num_processes=1)
    assert clock.now - began < 130
    first, second = (cell.results[0] for cell in bench.cells())
    assert not first.is_done
    assert not second.is_done
    assert abs(first.step - second.step) <= 20
    assert first.step >= 60
    for path in bench.configs:
        assert (path / "state.pt").exists()
    for _ in range(5):
        if not any(cell.missing for cell in bench.cells()):
            break
        bench.run(nobody, minutes=2, num_processes=1)
    assert [cell.missing for cell in bench.cells()] == ["", ""]
    assert metrics_below(tmp_path) == metrics_below(undisturbed)


def test_a_clock_that_is_set_back_all_the_time_changes_no_result_and_takes_no_time_away(
    trained: Path, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hours = count(10**6, -1)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: 3600 * 10**9 * next(hours))
    monkeypatch.setattr(parallel, "time", time)
    bench = bench_in(tmp_path / "out", seeds=(1, 2))
    bench.run(nobody, minutes=10)
    assert metrics_below(bench.folder) == metrics_below(trained)
    for cell in bench.cells():
        assert (cell.missing, cell.failures) == ("", {})
        assert all(0 < result.minutes < 1 for result in cell.results)


@pytest.mark.parametrize(("ending", "time_is_up"), [(ValueError("no"), False), (Interrupted("stopped"), True)])
def test_the_time_is_said_to_be_up_only_where_a_run_was_cut_off(
    command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: Exception, time_is_up: bool
) -> None:
    def new_run(config: RunConfig, path: Path, *, until: float | None) -> None:
        raise ending

    monkeypatch.setattr(parallel, "new_run", new_run)
    outcome = command(RECIPE, *arguments_for(tmp_path / "out"), "--minutes", 0.1)
    assert ("The time is up; go on with the same command." in outcome.output) == time_is_up


# Stops and kills

RESULTS = {f"results.{kind}" for kind in ("json", "csv", "md", "html")}
STOPPED = "stopped; go on with the same command\n"


def num_evaluations(bench: Bench) -> int:
    return sum(len(RunFolder(path).evaluations()) for path in bench.configs)


def test_sigterm_stops_a_bench_at_once_with_results_and_it_goes_on_to_the_same_end(
    undisturbed: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    bench = bench_in(out, iterations=LONG, settings=SELDOM_SAVED)
    arguments = (RECIPE, OTHER, *arguments_for(out, iterations=LONG, settings=SELDOM_SAVED))
    stopped_at = list[float]()

    def stop_at_the_first_evaluation() -> None:
        wait_for(lambda: num_evaluations(bench))
        stopped_at.append(time.monotonic())
        stop_as_kill_does()

    threading.Thread(target=stop_at_the_first_evaluation, daemon=True).start()
    outcome = command(*arguments, "--processes", 2)
    assert time.monotonic() - stopped_at[-1] < 5
    assert (outcome.code, outcome.errors) == (130, STOPPED)
    assert active_children() == []
    steps = [cell.results[0].step if cell.results else 0 for cell in bench.cells()]
    assert 0 < sum(steps) < 2 * LONG
    written = [run["step"] for name in (RECIPE, OTHER) for run in entries(out)[name]["runs"]]  # type: ignore[attr-defined]
    assert written == [step for step in steps if step]
    assert {file.name for file in out.glob("results.*")} == RESULTS

    train_here(monkeypatch)
    assert command(*arguments).code == 0
    assert metrics_below(out) == metrics_below(undisturbed)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return False
    return not state.startswith(("Z", "X"))  # ended, though nobody may have asked how


def workers_of(process: int) -> list[int]:
    try:
        children = [
            int(child)
            for path in Path(f"/proc/{process}/task").glob("*/children")
            for child in path.read_text().split()
        ]
        return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def is_importing(worker: int) -> bool:
    """Half of it: torch is on its way."""
    try:
        return "libtorch" in Path(f"/proc/{worker}/maps").read_text()
    except OSError:
        return False


class Benching:
    """`mnar bench` with one worker, in a process group of their own, as a shell starts it; none is left in the end."""

    def __init__(self, out: Path) -> None:
        arguments = arguments_for(out, iterations=LONG, settings=SELDOM_SAVED)
        self.run_folder = out / "runs" / RECIPE / "seed-1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mnar", "bench", RECIPE, *arguments, "--processes", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,
        )

    def worker_when(self, moment: str) -> int:
        """Wait until it is importing or has been training for a while; returns its process."""
        wait_for(lambda: workers_of(self.process.pid))
        (worker,) = workers_of(self.process.pid)
        wait_for(lambda: is_importing(worker) if moment == "starting" else RunFolder(self.run_folder).evaluations())
        return worker

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Benching:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@needs_proc
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_ctrl_c_at_a_terminal_stops_a_bench_with_results_and_without_a_traceback_and_it_goes_on_to_the_same_end(
    moment: str, undisturbed: Path, here: None, tmp_path: Path
) -> None:
    with Benching(tmp_path) as benched:
        worker = benched.worker_when(moment)
        os.killpg(benched.process.pid, signal.SIGINT)
        errors = benched.process.communicate(timeout=10)[1]
        assert not is_alive(worker)
    assert (benched.process.returncode, errors) == (130, STOPPED)
    assert {file.name for file in tmp_path.glob("results.*")} == RESULTS
    bench = bench_in(tmp_path, RECIPE, iterations=LONG, settings=SELDOM_SAVED)
    assert bench.cells()[0].missing.startswith("seed 1 at step " if moment == "training" else "seed 1 not begun")
    bench.run(nobody)
    assert metrics_below(tmp_path / "runs" / RECIPE) == metrics_below(undisturbed / "runs" / RECIPE)


@needs_proc
def test_a_killed_bench_goes_on_to_the_same_end_though_its_worker_is_still_saving(
    undisturbed: Path, here: None, tmp_path: Path
) -> None:
    with Benching(tmp_path) as benched:
        benched.worker_when("training")
        benched.kill()
        bench = bench_in(tmp_path, RECIPE, iterations=LONG, settings=SELDOM_SAVED)
        assert bench.cells()[0].missing.startswith("seed 1 at step ")
        bench.run(nobody)
    assert (bench.cells()[0].missing, bench.cells()[0].failures) == ("", {})
    assert metrics_below(tmp_path / "runs" / RECIPE) == metrics_below(undisturbed / "runs" / RECIPE)


@needs_proc
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_the_worker_of_a_killed_bench_ends_within_seconds_by_itself(moment: str, tmp_path: Path) -> None:
    with Benching(tmp_path) as benched:
        worker = benched.worker_when(moment)
        benched.kill()
        assert is_alive(worker)
        wait_for(lambda: not is_alive(worker), seconds=8)
