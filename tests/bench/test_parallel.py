from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import mnar.run
from mnar.bench import child_process, parallel
from mnar.bench.child_process import ChildProcess, ProcessKilled
from mnar.bench.parallel import STOPPED, run_all, steps_done
from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import stopping
from mnar.run.file_names import MODEL
from mnar.run.folder import RunFolder
from mnar.run.lock import InUse, locked
from mnar.training.trainer import Interrupted
from tests.bench.benches import (
    LONG,
    RECIPE,
    SELDOM_SAVED,
    TINY,
    Clock,
    Here,
    bench_in,
    ignore_progress,
    make_up,
    metrics_below,
    stop_at,
    train_here,
)
from tests.support.command import wait_for
from tests.support.together import train_together

Outcomes = Mapping[Path, list[Exception | None]]


def config_of(recipe: str = RECIPE, *, iterations: int = 6, seed: int = 1) -> RunConfig:
    return configure(recipe=recipe, iterations=iterations, seed=seed, settings=TINY)


@pytest.mark.parametrize(
    ("environment", "step"),
    [
        pytest.param('{"sessions": [{"to_step": 4}]}', 4, id="one session"),
        pytest.param('{"sessions": [{"to_step": 4}, {"to_step": 5}]}', 5, id="two"),
        *((text, 0) for text in ("", "{", "{}", "[]", "null", "\0" * 100, '{"sessions": []}', '{"sessions": {}}')),
        *((f'{{"sessions": [{session}]}}', 0) for session in ("{}", "3", '{"to_step": null}', '{"to_step": "x"}')),
    ],
)
def test_steps_done_is_the_last_saved_step_and_zero_for_a_damaged_file(
    environment: str, step: int, tmp_path: Path
) -> None:
    (tmp_path / "environment.json").write_text(environment)
    assert steps_done(tmp_path, config_of()) == step


def test_steps_done_is_the_step_of_the_checkpoint_also_before_the_first_evaluation(tmp_path: Path) -> None:
    for step in (1, 3):
        path = tmp_path / f"{step}"
        stop_at(step, path, config_of())
        assert steps_done(path, config_of()) == step
    assert RunFolder(tmp_path / "1").evaluations() == []


def test_steps_done_is_zero_without_a_folder_and_all_steps_with_a_model(tmp_path: Path) -> None:
    assert steps_done(tmp_path / "nowhere", config_of()) == 0
    make_up(tmp_path, config_of(iterations=6), [0.5], steps=[4])  # as after early stopping
    assert steps_done(tmp_path, config_of(iterations=6)) == 6


class Turn(NamedTuple):
    path: Path
    seconds: float | None
    num_beside: int  # other processes that ran when this one started


class ScriptedProcess:
    """Stands in for `ChildProcess`: ends at a time of the clock, with an error or without one."""

    def __init__(self, clock: Clock, end: float, error: Exception | None) -> None:
        self.clock, self.end, self.error = clock, end, error

    def has_ended(self) -> bool:
        return self.clock.now >= self.end

    def terminate(self) -> None:
        self.end = self.clock.now


class Script:
    """Starts scripted processes. A process ends when its time is over or, without a time limit, after a second.

    If `outcomes` has an entry for the run, the process ends at once, with the error in that entry. With `late`,
    processes end `late`, 2 `late`, ... seconds after their time.
    """

    def __init__(self, clock: Clock, outcomes: Outcomes, late: float) -> None:
        self.clock, self.outcomes, self.late = clock, dict(outcomes), late
        self.turns: list[Turn] = []
        self.processes: list[ScriptedProcess] = []
        self.num_seen = 0

    @property
    def started(self) -> list[Path]:
        return [turn.path for turn in self.turns]

    @property
    def seconds(self) -> dict[Path, float]:
        """The total time that each run got, over all its turns."""
        return {path: sum(turn.seconds or 0 for turn in self.turns if turn.path == path) for path in self.started}

    @property
    def running(self) -> list[ScriptedProcess]:
        return [process for process in self.processes if not process.has_ended()]

    def start(self, function: Callable[..., None], config: RunConfig, path: Path, until: float | None, *_: Any) -> Any:
        now = self.clock.now
        self.turns.append(Turn(path, None if until is None else until - now, len(self.running)))
        if outcomes := self.outcomes.get(path):
            process = ScriptedProcess(self.clock, now, outcomes.pop(0))
        elif until is None:
            process = ScriptedProcess(self.clock, now + 1.0, None)
        else:
            delay = self.late * (len(self.turns) % 4)
            process = ScriptedProcess(self.clock, until + delay, Interrupted("its time is up"))
        self.processes.append(process)
        return process

    def sleep(self, seconds: float) -> None:
        """Advance the clock by `seconds`, or to the next end of a process if no process has started since."""
        is_new, self.num_seen = len(self.turns) > self.num_seen, len(self.turns)
        next_end = min((process.end for process in self.running), default=self.clock.now + seconds)
        self.clock.now = self.clock.now + seconds if is_new else next_end


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    def make(outcomes: Outcomes | None = None, late: float = 0.0) -> Script:
        clock = Clock()
        script = Script(clock, outcomes or {}, late)
        monkeypatch.setattr(clock, "sleep", script.sleep)
        monkeypatch.setattr(parallel, "time", clock)
        monkeypatch.setattr(parallel, "ChildProcess", script.start)
        return script

    return make


def configs_in(tmp_path: Path, number: int) -> dict[Path, RunConfig]:
    config = config_of(iterations=100)
    return {tmp_path / f"run-{i}": config for i in range(number)}


def failures_of(configs: Mapping[Path, RunConfig], **options: Any) -> dict[Path, str]:
    """Run all configurations; return the errors that `on_failure` got."""
    failures: dict[Path, str] = {}

    def note(path: Path, error: Exception) -> None:
        assert path not in failures, "reported twice"
        failures[path] = str(error)

    run_all(configs, ignore_progress, on_failure=note, **options)
    return failures


SIZES = [(1, 1), (6, 1), (2, 2), (2, 16), (4, 2), (6, 2), (12, 4), (32, 16)]


@pytest.mark.parametrize(
    ("num_runs", "num_processes", "late"),
    [(*size, late) for size in SIZES for late in (0.0, 2.0)],
)
def test_every_run_gets_an_equal_share_of_the_time_limit(
    num_runs: int, num_processes: int, late: float, scripted: Callable[..., Script], tmp_path: Path
) -> None:
    script = scripted(late=late)
    began = script.clock.now
    failures_of(configs_in(tmp_path, num_runs), num_processes=num_processes, seconds=6000.0)
    assert len(script.started) == num_runs
    share = 6000.0 / math.ceil(num_runs / num_processes)
    assert list(script.seconds.values()) == pytest.approx([share] * num_runs, rel=0.05)
    assert script.clock.now - began <= 6001.0 + num_runs * late


@pytest.mark.parametrize(("num_runs", "num_processes"), [(3, 2), (5, 2), (5, 4), (20, 16)])
def test_runs_get_a_second_turn_if_the_last_round_has_fewer_runs_than_processes(
    num_runs: int, num_processes: int, scripted: Callable[..., Script], tmp_path: Path
) -> None:
    script = scripted()
    began = script.clock.now
    failures_of(configs_in(tmp_path, num_runs), num_processes=num_processes, seconds=6000.0)
    assert len(script.started) > num_runs
    assert min(script.seconds.values()) >= 0.99 * 6000.0 / math.ceil(num_runs / num_processes)
    assert sum(script.seconds.values()) >= 0.95 * 6000.0 * num_processes, "no process is idle"
    assert script.clock.now - began <= 6001.0


def test_time_that_a_run_does_not_need_goes_to_the_runs_that_wait(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    first, *others = configs_in(tmp_path, 4)
    script = scripted({first: [None]})  # finished at once
    failures_of(configs_in(tmp_path, 4), num_processes=1, seconds=600.0)
    assert script.started == [first, *others]
    assert [turn.seconds for turn in script.turns] == pytest.approx([150, 200, 200, 200], rel=0.01)


@pytest.mark.parametrize("outcome", [None, OSError("the disk is full")], ids=["finished", "failed"])
def test_time_that_the_last_run_does_not_need_goes_to_the_unfinished_runs(
    outcome: Exception | None, scripted: Callable[..., Script], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    a, b, c = configs
    script = scripted({c: [outcome]})  # at once
    failures_of(configs, num_processes=1, seconds=600.0)
    assert script.started == [a, b, c, a, b]
    assert [turn.seconds for turn in script.turns] == pytest.approx([200, 200, 200, 100, 100], rel=0.01)


def test_no_turn_is_shorter_than_the_least_time_and_none_starts_after_the_time_limit(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    script = scripted()
    failures_of(configs_in(tmp_path, 10), num_processes=1, seconds=90.0)
    assert [turn.seconds for turn in script.turns] == pytest.approx([30] * 3, rel=0.05), "the others wait"
    first, second = configs_in(tmp_path, 2)
    script = scripted({second: [None]})
    failures_of(configs_in(tmp_path, 2), num_processes=1, seconds=50.0)
    assert script.started == [first, second], "no second turn of 20 seconds"


def test_with_a_time_limit_the_runs_with_the_fewest_saved_steps_start_first(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 4)
    a, b, c, d = configs
    for path, saved, evaluated in ((a, 30, 20), (b, 10, None), (d, 20, 90)):  # c has not started
        make_up(path, configs[path], [0.5], steps=[saved], is_done=False)
        lines = [json.dumps({"step": evaluated}) + "\n"] if evaluated else []
        (path / "metrics.jsonl").write_text("".join(lines))
    script = scripted()
    failures_of(configs, num_processes=1, seconds=4000.0)
    assert script.started == [c, b, d, a]
    script = scripted()
    failures_of(configs, num_processes=1)
    assert script.started == [a, b, c, d], "without a time limit, in the given order"
    assert {turn.seconds for turn in script.turns} == {None}


def test_the_order_depends_on_the_share_of_a_runs_own_steps(scripted: Callable[..., Script], tmp_path: Path) -> None:
    configs = {tmp_path / "long": config_of(iterations=1000), tmp_path / "short": config_of(iterations=100)}
    for (path, config), step in zip(configs.items(), (60, 50), strict=True):
        make_up(path, config, [0.5], steps=[step], is_done=False)
    script = scripted()
    failures_of(dict(reversed(configs.items())), num_processes=1, seconds=4000.0)
    assert script.started == list(configs)


def test_a_run_whose_process_is_killed_is_tried_again_alone_after_the_others(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 5)
    a, b, c, d, e = configs
    script = scripted({a: [ProcessKilled("killed"), None], b: [ProcessKilled("killed"), None]})
    assert failures_of(configs, num_processes=2) == {}
    assert script.started == [a, b, c, d, e, a, b]
    assert [turn.num_beside for turn in script.turns[-2:]] == [0, 0]


def test_no_run_starts_beside_a_run_that_is_tried_again(scripted: Callable[..., Script], tmp_path: Path) -> None:
    configs = configs_in(tmp_path, 3)
    a, b, c = configs
    script = scripted({a: [ProcessKilled("killed")], c: [None]})
    failures_of(configs, num_processes=2, seconds=600.0)
    second = script.started.index(a, 1)
    assert script.started[:second] == [a, b, c]
    assert script.turns[second].num_beside == 0
    assert all(turn.num_beside == 0 for turn in script.turns[second + 1 :])


def test_a_run_whose_process_is_killed_twice_fails_and_the_others_are_trained(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    a, b, c = configs
    script = scripted({b: [ProcessKilled("the process was killed"), ProcessKilled("the process was killed again")]})
    assert failures_of(configs, num_processes=2) == {b: "the process was killed again"}
    assert script.started == [a, b, c, b]


def test_a_run_that_fails_stops_all_runs_unless_there_is_an_on_failure(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    first = next(iter(configs))
    script = scripted({first: [OSError("the disk is full")]})
    assert failures_of(configs, num_processes=1) == {first: "the disk is full"}
    assert script.started == list(configs)
    script = scripted({first: [OSError("the disk is full")]})
    with pytest.raises(OSError, match="the disk is full"):
        run_all(configs, ignore_progress, num_processes=2)
    assert len(script.started) == 2
    assert script.running == []


def test_a_run_that_a_signal_stops_stops_all_runs(scripted: Callable[..., Script], tmp_path: Path) -> None:
    configs = configs_in(tmp_path, 3)
    first = next(iter(configs))
    script = scripted({first: [Interrupted("stopped at step 3")]})
    with pytest.raises(Interrupted, match=STOPPED):
        failures_of(configs, num_processes=1)
    assert script.started == [first]
    script = scripted({first: [Interrupted("stopped at step 3")]})
    assert failures_of(configs, num_processes=1, seconds=600.0) == {}, "the end of its time is not a failure"
    assert script.started[:3] == list(configs)


def test_ctrl_c_during_the_start_of_a_process_is_not_lost(
    scripted: Callable[..., Script], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = scripted()

    def start(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return script.start(*arguments)

    monkeypatch.setattr(parallel, "ChildProcess", start)
    with pytest.raises(Interrupted, match=STOPPED):
        failures_of(configs_in(tmp_path, 3), num_processes=1)
    assert len(script.started) == 1
    assert script.running == []


def test_finished_runs_are_counted_and_not_trained_again(scripted: Callable[..., Script], tmp_path: Path) -> None:
    configs = configs_in(tmp_path, 3)
    done, *others = configs
    make_up(done, configs[done], [0.5])
    script = scripted()
    assert run_all(configs, ignore_progress, num_processes=1) == 1
    assert script.started == others


def test_progress_is_1_if_all_runs_are_finished(scripted: Callable[..., Script], tmp_path: Path) -> None:
    configs, shares = configs_in(tmp_path, 2), list[float]()
    for path, config in configs.items():
        make_up(path, config, [0.5])
    assert run_all(configs, shares.append) == 2
    assert shares == [1.0]


def test_progress_ends_at_1_whenever_the_last_run_ends(
    scripted: Callable[..., Script], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ((path, config),) = configs_in(tmp_path, 1).items()
    shares = list[float]()
    scripted()

    class FinishedWhenAsked:
        error = None

        def has_ended(self) -> bool:
            make_up(path, config, [0.5])
            return True

    monkeypatch.setattr(parallel, "ChildProcess", lambda *arguments: FinishedWhenAsked())
    run_all({path: config}, shares.append, num_processes=1)
    assert shares == [0.0, 1.0]


def test_other_settings_in_a_folder_are_an_error_before_any_run_is_trained(
    scripted: Callable[..., Script], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    last = list(configs)[-1]
    make_up(last, config_of(iterations=99), [0.5])
    script = scripted()
    with pytest.raises(FileExistsError, match=r"run-2 holds a run with other settings \(train.iterations: 99 and 100"):
        failures_of(configs, num_processes=1)
    assert script.started == []


def test_a_run_waits_for_a_process_that_is_still_saving_to_its_folder(
    monkeypatch: pytest.MonkeyPatch, without_report: None, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    saving, clock = locked(path), Clock()
    saving.__enter__()
    sleeps = list[float]()

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 3:
            saving.__exit__(None, None, None)

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(parallel, "time", clock)
    monkeypatch.setattr(parallel, "ChildProcess", Here)
    assert failures_of({path: config_of()}, num_processes=1) == {}
    assert sleeps.count(1) == 3
    assert (path / MODEL).exists()


def test_a_folder_that_stays_in_use_is_a_failure_that_names_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    monkeypatch.setattr(parallel, "time", Clock())
    monkeypatch.setattr(parallel, "ChildProcess", Here)
    with locked(path):
        failures = failures_of({path: config_of()}, num_processes=1)
    assert f"in use by process {os.getpid()}" in failures[path]
    assert not (path / MODEL).exists()


def test_a_locked_folder_raises_in_use_with_the_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InUse, match=f"in use by process {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_run_stops_and_saves_at_its_time_limit_and_resumes_to_the_same_metrics(
    monkeypatch: pytest.MonkeyPatch, without_report: None, tmp_path: Path
) -> None:
    config = config_of(iterations=40)
    mnar.run.new_run(config, tmp_path / "straight")
    clock = Clock(tick=1)
    monkeypatch.setattr(stopping, "time", clock)
    with pytest.raises(Interrupted, match=r"stopped at step \d+ of 40; saved"):
        mnar.run.new_run(config, tmp_path / "run", until=clock.now + 20)
    assert 2 <= RunFolder(tmp_path / "run").evaluations()[-1]["step"] <= 20
    with pytest.raises(Interrupted):
        mnar.run.resume_run(tmp_path / "run", until=clock.now - 1)  # even then a step is taken
    mnar.run.resume_run(tmp_path / "run", until=clock.now + 10_000)
    straight, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "run"))
    assert resumed == straight


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise an error after some seconds, and again every 5 seconds, so that a test cannot hang."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("method", ["default", "spawn"])
def test_a_run_whose_real_process_is_killed_twice_fails_and_the_run_beside_it_is_not_disturbed(
    method: str, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SIGKILL is what the kernel sends when memory runs out."""
    configs = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs
    first, second = configs
    finished: list[tuple[bool, bool]] = []  # which of the two runs were finished when the second was killed

    def kill_the_second_run_twice() -> None:
        for is_time in (
            lambda: RunFolder(first).evaluations() and RunFolder(second).evaluations(),
            lambda: num_sessions_of(second) == 2 and RunFolder(second).evaluations(),
        ):
            wait_for(is_time)
            finished.append(((first / MODEL).exists(), (second / MODEL).exists()))
            os.kill(int((second / ".lock").read_text()), signal.SIGKILL)

    begin = get_context("spawn").Barrier(2)
    barriers = iter((begin, begin, None))
    if method == "spawn":
        monkeypatch.setattr(child_process, "_context", lambda: get_context("spawn"))
    monkeypatch.setattr(
        parallel, "ChildProcess", lambda work, *arguments: ChildProcess(train_together, next(barriers), *arguments)
    )
    killer = threading.Thread(target=kill_the_second_run_twice, daemon=True)
    killer.start()
    with within(180):
        failures = failures_of(configs, num_processes=2)
    killer.join(1)
    assert finished == [(False, False), (True, False)]
    assert list(failures) == [second]
    assert "was killed by signal 9, perhaps because memory ran out; choose a smaller batch" in failures[second]
    assert num_sessions_of(first) == 1
    assert RunFolder(first).environment()["threads"] == 1
    assert active_children() == []

    train_here(monkeypatch)
    assert failures_of(configs) == {}
    assert metrics_below(tmp_path) == metrics_below(undisturbed)


def num_sessions_of(path: Path) -> int:
    try:
        return len(json.loads((path / "environment.json").read_text())["sessions"])
    except FileNotFoundError:
        return 0
