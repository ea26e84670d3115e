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
from mnar.bench.parallel import STOPPED
from mnar.config import RunConfig
from mnar.run import stopping
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
    ignore_progress,
    metrics_below,
    train_here,
)
from tests.support.command import stop_as_kill_does, wait_for

# Time


def test_runs_that_share_a_time_limit_are_saved_and_end_with_the_same_metrics_as_without_a_limit(
    undisturbed: Path, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(tick=0.5)
    monkeypatch.setattr(parallel, "time", clock)
    monkeypatch.setattr(stopping, "time", clock)
    bench = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED)
    began = clock.now
    bench.run(ignore_progress, minutes=2, num_processes=1)
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
        bench.run(ignore_progress, minutes=2, num_processes=1)
    assert [cell.missing for cell in bench.cells()] == ["", ""]
    assert metrics_below(tmp_path) == metrics_below(undisturbed)


def test_a_system_clock_that_runs_backwards_changes_no_result(
    trained: Path, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hours = count(10**6, -1)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: 3600 * 10**9 * next(hours))
    monkeypatch.setattr(parallel, "time", time)
    bench = bench_in(tmp_path / "out", seeds=(1, 2))
    bench.run(ignore_progress, minutes=10)
    assert metrics_below(bench.folder) == metrics_below(trained)
    for cell in bench.cells():
        assert (cell.missing, cell.failures) == ("", {})
        assert all(0 < result.minutes < 1 for result in cell.results)


@pytest.mark.parametrize(("ending", "time_is_up"), [(ValueError("no"), False), (Interrupted("stopped"), True)])
def test_the_command_says_that_the_time_is_up_only_if_a_run_is_unfinished(
    command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: Exception, time_is_up: bool
) -> None:
    def new_run(config: RunConfig, path: Path, **options: object) -> None:
        raise ending

    monkeypatch.setattr(parallel, "new_run", new_run)
    outcome = command(RECIPE, *arguments_for(tmp_path / "out"), "--minutes", 0.1)
    assert ("The time is up; run the same command again to continue." in outcome.output) == time_is_up


# Stops and kills

RESULTS = {f"results.{kind}" for kind in ("json", "csv", "md", "html")}


def num_evaluations(bench: Bench) -> int:
    return sum(len(RunFolder(path).evaluations()) for path in bench.configs)


def test_sigterm_stops_a_bench_which_writes_results_and_resumes_to_the_same_metrics(
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
    assert (outcome.code, outcome.errors) == (130, f"{STOPPED}\n")
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


def processes_in(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, process_group = path.read_text().rpartition(") ")[2].split()[:3]
            if int(process_group) == group and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def is_importing(process: int) -> bool:
    """Whether torch is being imported, which is about half of the start of a process."""
    try:
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


USE_SPAWN = """
from multiprocessing import get_context
from mnar.bench import child_process
from mnar.cli import main
child_process._context = lambda: get_context("spawn")
main()
"""
COMMANDS = {"default": ["-m", "mnar"], "spawn": ["-c", USE_SPAWN]}  # how `mnar` starts the processes of its runs


class Benching:
    """`mnar bench` with one run at a time, in a process group of its own as a shell starts it, ended on exit."""

    def __init__(self, out: Path, method: str) -> None:
        arguments = arguments_for(out, iterations=LONG, settings=SELDOM_SAVED)
        self.run_folder = out / "runs" / RECIPE / "seed-1"
        self.process = subprocess.Popen(
            [sys.executable, *COMMANDS[method], "bench", RECIPE, *arguments, "--processes", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,
        )

    @property
    def children(self) -> list[int]:
        return [process for process in processes_in(self.process.pid) if process != self.process.pid]

    def wait_until(self, moment: str) -> None:
        """Wait until a process is being started for the run, or until the run has been trained for a while."""
        if moment == "starting":
            wait_for(lambda: any(is_importing(process) for process in self.children))
        else:
            wait_for(lambda: RunFolder(self.run_folder).evaluations())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Benching:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


METHODS_AND_MOMENTS = [(method, moment) for method in COMMANDS for moment in ("starting", "training")]


@needs_proc
@pytest.mark.parametrize(
    ("method", "moment", "number"),
    [
        *((method, moment, signal.SIGINT) for method, moment in METHODS_AND_MOMENTS),
        *(("default", "training", number) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_signal_to_all_processes_stops_a_bench_without_a_traceback_and_the_bench_resumes_to_the_same_metrics(
    method: str, moment: str, number: int, undisturbed: Path, here: None, tmp_path: Path
) -> None:
    """A terminal sends Ctrl-C (SIGINT) and its end (SIGHUP) to all processes, and a job scheduler sends SIGTERM."""
    with Benching(tmp_path, method) as benched:
        benched.wait_until(moment)
        os.killpg(benched.process.pid, number)
        errors = benched.process.communicate(timeout=60)[1]
        wait_for(lambda: not benched.children)
    assert (benched.process.returncode, errors) == (130, f"{STOPPED}\n")
    assert {file.name for file in tmp_path.glob("results.*")} == RESULTS
    bench = bench_in(tmp_path, RECIPE, iterations=LONG, settings=SELDOM_SAVED)
    missing = bench.cells()[0].missing
    assert missing.startswith("seed 1 at step ") if moment == "training" else missing
    bench.run(ignore_progress)
    assert metrics_below(tmp_path / "runs" / RECIPE) == metrics_below(undisturbed / "runs" / RECIPE)


@needs_proc
@pytest.mark.parametrize("method", COMMANDS)
def test_a_killed_bench_resumes_to_the_same_metrics_while_the_process_of_its_run_is_still_saving(
    method: str, undisturbed: Path, here: None, tmp_path: Path
) -> None:
    with Benching(tmp_path, method) as benched:
        benched.wait_until("training")
        benched.kill()
        bench = bench_in(tmp_path, RECIPE, iterations=LONG, settings=SELDOM_SAVED)
        assert bench.cells()[0].missing.startswith("seed 1 at step ")
        bench.run(ignore_progress)
    assert (bench.cells()[0].missing, bench.cells()[0].failures) == ("", {})
    assert metrics_below(tmp_path / "runs" / RECIPE) == metrics_below(undisturbed / "runs" / RECIPE)


@needs_proc
@pytest.mark.parametrize(("method", "moment"), METHODS_AND_MOMENTS)
def test_all_processes_of_a_killed_bench_end_by_themselves(method: str, moment: str, tmp_path: Path) -> None:
    with Benching(tmp_path, method) as benched:
        benched.wait_until(moment)
        benched.kill()
        assert benched.children
        wait_for(lambda: not benched.children)
