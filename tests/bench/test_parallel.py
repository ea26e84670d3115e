from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch

import mnar.run
from mnar.bench import parallel
from mnar.bench.parallel import STOPPED, run_all, steps_done
from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import recorder
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
    make_up,
    metrics_below,
    stop_at,
    train_here,
)
from tests.support import together
from tests.test_cli import wait_for

Outcomes = Mapping[Path, list[BaseException | None]]


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
def test_progress_is_the_step_at_which_the_last_session_saved_and_none_where_that_is_damaged(
    environment: str, step: int, tmp_path: Path
) -> None:
    (tmp_path / "environment.json").write_text(environment)
    assert steps_done(tmp_path, config_of()) == step


def test_progress_is_that_of_the_checkpoint_also_before_the_first_evaluation(tmp_path: Path) -> None:
    for step in (1, 3):
        path = tmp_path / f"{step}"
        stop_at(step, path, config_of())
        assert steps_done(path, config_of()) == step
    assert RunFolder(tmp_path / "1").evaluations() == []


def test_a_run_that_was_not_begun_has_done_nothing_and_one_with_a_model_all(tmp_path: Path) -> None:
    assert steps_done(tmp_path / "nowhere", config_of()) == 0
    make_up(tmp_path, config_of(iterations=6), [0.5], steps=[4])  # as one that ended early
    assert steps_done(tmp_path, config_of(iterations=6)) == 6


class Turn(NamedTuple):
    path: Path
    seconds: float | None
    pool: int
    num_beside: int  # others that were being trained then


class Scripted(Executor):
    """A pool on a clock of its own. A run ends when its seconds are over, each `late`, 2 `late`, ... after that, or at
    once as `outcomes` says.
    """

    def __init__(self, clock: Clock, outcomes: Outcomes, late: float) -> None:
        self.clock, self.outcomes, self.late = clock, dict(outcomes), late
        self.turns: list[Turn] = []
        self.ends: dict[Future[Any], tuple[float, BaseException | None]] = {}
        self.pools = self.num_seen = 0
        self.breaks_at: set[int] = set()  # submissions that find the pool broken

    @property
    def begun(self) -> list[Path]:
        return [turn.path for turn in self.turns]

    @property
    def seconds(self) -> dict[Path, float]:
        """Over all the turns of a run."""
        return {path: sum(turn.seconds or 0 for turn in self.turns if turn.path == path) for path in self.begun}

    def new_pool(self, num_processes: int) -> Scripted:
        self.pools, self.num_processes = self.pools + 1, num_processes
        return self

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        _, path, seconds = arguments
        if (number := len(self.turns)) in self.breaks_at:
            self.breaks_at.remove(number)
            raise BrokenProcessPool("a process was killed")
        self.turns.append(Turn(path, seconds, self.pools, sum(not future.done() for future in self.ends)))
        future: Future[Any] = Future()
        if outcomes := self.outcomes.get(path):
            error = outcomes.pop(0)
            future.set_exception(error) if error else future.set_result(None)
        delay = self.late * (len(self.turns) % self.num_processes)
        end = self.clock.now + (1.0 if seconds is None else seconds) + delay
        self.ends[future] = end, None if seconds is None else Interrupted("its time is up")
        return future

    def sleep(self, seconds: float) -> None:
        """So long; or until the next run ends, where none was begun since."""
        waiting = [end for future, (end, _) in self.ends.items() if not future.done()]
        is_new, self.num_seen = len(self.turns) > self.num_seen, len(self.turns)
        self.clock.now = self.clock.now + seconds if is_new else min(waiting, default=self.clock.now + seconds)
        for future, (end, error) in self.ends.items():
            if end <= self.clock.now and not future.done():
                future.set_exception(error) if error else future.set_result(None)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def make(outcomes: Outcomes | None = None, late: float = 0.0) -> Scripted:
        clock = Clock()
        pool = Scripted(clock, outcomes or {}, late)
        monkeypatch.setattr(clock, "sleep", pool.sleep)
        monkeypatch.setattr(parallel, "time", clock)
        monkeypatch.setattr(parallel, "_new_pool", pool.new_pool)
        return pool

    return make


def configs_in(tmp_path: Path, number: int) -> dict[Path, RunConfig]:
    config = config_of(iterations=100)
    return {tmp_path / f"run-{i}": config for i in range(number)}


def failures_of(configs: Mapping[Path, RunConfig], **options: Any) -> dict[Path, str]:
    """Run them all; returns what an `on_failure` is told."""
    failures: dict[Path, str] = {}

    def note(path: Path, error: Exception) -> None:
        assert path not in failures, "told twice"
        failures[path] = str(error)

    run_all(configs, lambda share: None, on_failure=note, **options)
    return failures


SIZES = [(1, 1), (6, 1), (2, 2), (2, 16), (4, 2), (6, 2), (12, 4), (32, 16)]


@pytest.mark.parametrize(
    ("num_runs", "num_processes", "late"),
    [(*size, late) for size in SIZES for late in (0.0, 2.0)],
)
def test_within_a_time_every_run_gets_an_equal_share_of_it(
    num_runs: int, num_processes: int, late: float, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    pool = scripted(late=late)
    began = pool.clock.now
    failures_of(configs_in(tmp_path, num_runs), num_processes=num_processes, seconds=6000.0)
    assert len(pool.begun) == num_runs
    share = 6000.0 / math.ceil(num_runs / num_processes)
    assert list(pool.seconds.values()) == pytest.approx([share] * num_runs, rel=0.05)
    assert pool.clock.now - began <= 6001.0 + num_runs * late


@pytest.mark.parametrize(("num_runs", "num_processes"), [(3, 2), (5, 2), (5, 4), (20, 16)])
def test_where_runs_do_not_fill_the_last_round_others_get_a_second_turn_and_no_process_is_idle(
    num_runs: int, num_processes: int, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    pool = scripted()
    began = pool.clock.now
    failures_of(configs_in(tmp_path, num_runs), num_processes=num_processes, seconds=6000.0)
    assert len(pool.begun) > num_runs
    assert min(pool.seconds.values()) >= 0.99 * 6000.0 / math.ceil(num_runs / num_processes)
    assert sum(pool.seconds.values()) >= 0.95 * 6000.0 * num_processes
    assert pool.clock.now - began <= 6001.0


def test_time_that_one_run_does_not_need_goes_to_those_that_wait(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    first, *others = configs_in(tmp_path, 4)
    pool = scripted({first: [None]})  # done in no time
    failures_of(configs_in(tmp_path, 4), num_processes=1, seconds=600.0)
    assert pool.begun == [first, *others]
    assert [turn.seconds for turn in pool.turns] == pytest.approx([150, 200, 200, 200], rel=0.01)


@pytest.mark.parametrize("outcome", [None, OSError("the disk is full")], ids=["done", "failed"])
def test_time_that_the_last_run_does_not_need_goes_to_those_that_had_their_turn(
    outcome: BaseException | None, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    a, b, c = configs
    pool = scripted({c: [outcome]})  # at once
    failures_of(configs, num_processes=1, seconds=600.0)
    assert pool.begun == [a, b, c, a, b]
    assert [turn.seconds for turn in pool.turns] == pytest.approx([200, 200, 200, 100, 100], rel=0.01)


def test_no_run_is_begun_for_less_than_it_takes_to_start_and_none_after_the_time(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    pool = scripted()
    failures_of(configs_in(tmp_path, 10), num_processes=1, seconds=90.0)
    assert [turn.seconds for turn in pool.turns] == pytest.approx([30] * 3, rel=0.05), "the others another time"
    first, second = configs_in(tmp_path, 2)
    pool = scripted({second: [None]})
    failures_of(configs_in(tmp_path, 2), num_processes=1, seconds=50.0)
    assert pool.begun == [first, second], "and no second turn for 20 seconds"


def test_within_a_time_those_behind_by_what_was_saved_come_first_and_otherwise_all_as_given(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 4)
    a, b, c, d = configs
    for path, saved, evaluated in ((a, 30, 20), (b, 10, None), (d, 20, 90)):  # c has not begun
        make_up(path, configs[path], [0.5], steps=[saved], is_done=False)
        lines = [json.dumps({"step": evaluated}) + "\n"] if evaluated else []
        (path / "metrics.jsonl").write_text("".join(lines))
    pool = scripted()
    failures_of(configs, num_processes=1, seconds=4000.0)
    assert pool.begun == [c, b, d, a]
    pool = scripted()
    failures_of(configs, num_processes=1)
    assert pool.begun == [a, b, c, d]
    assert {turn.seconds for turn in pool.turns} == {None}


def test_what_counts_as_behind_is_the_share_of_its_own_steps(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    configs = {tmp_path / "long": config_of(iterations=1000), tmp_path / "short": config_of(iterations=100)}
    for (path, config), step in zip(configs.items(), (60, 50), strict=True):
        make_up(path, config, [0.5], steps=[step], is_done=False)
    pool = scripted()
    failures_of(dict(reversed(configs.items())), num_processes=1, seconds=4000.0)
    assert pool.begun == list(configs)


def killed() -> BrokenProcessPool:
    return BrokenProcessPool("a process was killed")


def test_a_run_whose_process_is_killed_once_is_tried_again_alone_after_the_others(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 4)
    a, b, c, d = configs
    pool = scripted({a: [killed(), None], b: [killed(), None]})  # a pool that breaks ends all that are in it
    assert failures_of(configs, num_processes=2) == {}
    assert pool.begun == [a, b, c, d, a, b]
    assert [turn.num_beside for turn in pool.turns[-2:]] == [0, 0]
    assert pool.pools == 2


def test_a_run_that_kills_its_process_twice_is_a_failure_with_its_reason_and_the_others_are_trained(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    a, b, c = configs
    pool = scripted({a: [killed(), None], b: [killed(), killed()]})
    failures = failures_of(configs, num_processes=2)
    assert list(failures) == [b]
    assert "killed, perhaps for want of memory" in failures[b]
    assert pool.begun == [a, b, c, a, b]


def test_a_run_that_a_broken_pool_refuses_is_not_forgotten(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    configs = configs_in(tmp_path, 3)
    pool = scripted()
    pool.breaks_at = {1}  # the process died between two runs
    assert failures_of(configs, num_processes=1) == {}
    assert set(pool.begun) == set(configs)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_after_a_failure_on_a_gpu_the_next_run_begins_in_a_new_process_once_the_others_have_ended(
    has_gpu: bool, scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error of CUDA can outlive its run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    configs = configs_in(tmp_path, 5)
    a, b, c, d, e = configs
    pool = scripted({b: [RuntimeError("CUDA error: an illegal memory access")]})
    assert list(failures_of(configs, num_processes=2)) == [b]
    assert [(turn.path, turn.pool, turn.num_beside) for turn in pool.turns] == (
        [(a, 1, 0), (b, 1, 1), (c, 2, 0), (d, 2, 1), (e, 2, 0)]
        if has_gpu
        else [(a, 1, 0), (b, 1, 1), (c, 1, 1), (d, 1, 1), (e, 1, 1)]
    )


def test_a_run_that_fails_does_not_stop_the_rest_if_somebody_is_told_and_does_otherwise(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    first = next(iter(configs))
    pool = scripted({first: [OSError("the disk is full")]})
    assert failures_of(configs, num_processes=1) == {first: "the disk is full"}
    assert pool.begun == list(configs)
    pool = scripted({first: [OSError("the disk is full")]})
    with pytest.raises(OSError, match="the disk is full"):
        run_all(configs, lambda share: None, num_processes=1)
    assert pool.begun == [first]


def test_a_run_that_is_stopped_ends_all_unless_its_time_was_up(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    first = next(iter(configs))
    pool = scripted({first: [Interrupted("stopped at step 3")]})
    with pytest.raises(Interrupted, match=STOPPED):
        failures_of(configs, num_processes=1)
    assert pool.begun == [first]
    pool = scripted({first: [Interrupted("stopped at step 3")]})
    assert failures_of(configs, num_processes=1, seconds=600.0) == {}
    assert pool.begun[:3] == list(configs)


def test_ctrl_c_while_a_run_is_handed_to_a_worker_is_not_lost(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = scripted()

    def submit(*arguments: Any) -> Future[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return Scripted.submit(pool, *arguments)

    monkeypatch.setattr(pool, "submit", submit)
    with pytest.raises(Interrupted, match=STOPPED):
        failures_of(configs_in(tmp_path, 3), num_processes=1)
    assert len(pool.begun) == 1


def test_what_is_done_is_counted_and_left_alone(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    configs = configs_in(tmp_path, 3)
    done, *others = configs
    make_up(done, configs[done], [0.5])
    pool = scripted()
    assert run_all(configs, lambda share: None, num_processes=1) == 1
    assert pool.begun == others


def test_where_all_is_done_progress_is_all_of_it(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    configs, shares = configs_in(tmp_path, 2), list[float]()
    for path, config in configs.items():
        make_up(path, config, [0.5])
    assert run_all(configs, shares.append) == 2
    assert shares == [1.0]


def test_progress_ends_at_all_of_it_whenever_between_two_looks_the_last_run_ends(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ((path, config),) = configs_in(tmp_path, 1).items()
    pool, shares = scripted(), list[float]()

    class DoneOnceAsked(Future[None]):
        def done(self) -> bool:
            if not super().done():
                make_up(path, config, [0.5])
                self.set_result(None)
            return True

    monkeypatch.setattr(pool, "submit", lambda *arguments: DoneOnceAsked())
    run_all({path: config}, shares.append, num_processes=1)
    assert shares[-1] == 1.0


def test_other_settings_in_a_folder_are_refused_before_anything_is_trained(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 3)
    last = list(configs)[-1]
    make_up(last, config_of(iterations=99), [0.5])
    pool = scripted()
    with pytest.raises(FileExistsError, match=r"run-2 holds a run with other settings \(train.iterations: 99 and 100"):
        failures_of(configs, num_processes=1)
    assert pool.begun == []


def test_a_folder_that_somebody_is_still_saving_to_is_waited_for(
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
    monkeypatch.setattr(parallel, "_new_pool", lambda num_processes: Here())
    assert failures_of({path: config_of()}, num_processes=1) == {}
    assert sleeps.count(1) == 3
    assert (path / MODEL).exists()


def test_a_folder_that_somebody_goes_on_using_is_a_failure_that_names_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    monkeypatch.setattr(parallel, "time", Clock())
    monkeypatch.setattr(parallel, "_new_pool", lambda num_processes: Here())
    with locked(path):
        failures = failures_of({path: config_of()}, num_processes=1)
    assert f"in use by process {os.getpid()}" in failures[path]
    assert not (path / MODEL).exists()


def test_the_lock_is_a_kind_of_file_exists_error_that_can_be_told_apart(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InUse, match=f"in use by process {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_run_stops_and_saves_once_its_time_is_up_and_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch, without_report: None, tmp_path: Path
) -> None:
    config = config_of(iterations=40)
    mnar.run.new_run(config, tmp_path / "straight")
    clock = Clock(tick=1)
    monkeypatch.setattr(recorder, "time", clock)
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
    """What hangs is an error, now and then again."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_two_runs_in_the_middle_of_which_a_worker_is_killed_are_tried_again_and_the_one_killed_again_fails_alone(
    undisturbed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the kernel does for want of memory."""
    configs = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs
    first, second = configs
    left: list[tuple[bool, bool]] = []  # which of the two had been trained when a worker was killed

    def kill_twice_whoever_trains_the_second() -> None:
        for is_time in (
            lambda: RunFolder(first).evaluations() and RunFolder(second).evaluations(),
            lambda: num_sessions_of(second) == 2 and RunFolder(second).evaluations(),
        ):
            wait_for(is_time)
            left.append(((first / MODEL).exists(), (second / MODEL).exists()))
            os.kill(int((second / ".lock").read_text()), signal.SIGKILL)

    num_together = iter((2, 1, 1))
    monkeypatch.setattr(
        parallel, "_new_pool", lambda number: together.new_pool(number, num_together=next(num_together))
    )
    killer = threading.Thread(target=kill_twice_whoever_trains_the_second, daemon=True)
    killer.start()
    with within(90):
        failures = failures_of(configs, num_processes=2)
    killer.join(1)
    assert left == [(False, False), (True, False)]
    assert list(failures) == [second]
    assert "killed, perhaps for want of memory" in failures[second]
    assert active_children() == []

    train_here(monkeypatch)
    assert failures_of(configs) == {}
    assert metrics_below(tmp_path) == metrics_below(undisturbed)


def num_sessions_of(path: Path) -> int:
    try:
        return len(json.loads((path / "environment.json").read_text())["sessions"])
    except FileNotFoundError:
        return 0
