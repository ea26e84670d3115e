from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

import mnar.run
from mnar import folder, side_by_side
from mnar.config import RunConfig
from mnar.folder import MODEL, InUse, locked
from mnar.recipes import configure
from mnar.report import read_metrics
from mnar.side_by_side import STOPPED, TAIL_BYTES, run_all, steps_done
from mnar.train import Interrupted
from tests.benches import OTHER, RECIPE, SELDOM_SAVED, TINY, Clock, Here, make_up
from tests.test_cli import wait_for

LINE = '{"step": %d, "test": {"accuracy": 0.5}, "train": {}}\n'


def config_of(recipe: str = RECIPE, *, iterations: int = 6, seed: int = 1) -> RunConfig:
    return configure(recipe=recipe, iterations=iterations, seed=seed, settings=TINY)


def progress_of(metrics: str | bytes, tmp_path: Path) -> int:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(metrics if isinstance(metrics, bytes) else metrics.encode())
    return steps_done(tmp_path, config_of())


@pytest.mark.parametrize(
    ("metrics", "step"),
    [
        pytest.param("", 0, id="empty"),
        pytest.param("\n", 0, id="an empty line"),
        pytest.param(LINE % 10, 10, id="one line"),
        pytest.param(LINE % 10 + LINE % 20, 20, id="two lines"),
        pytest.param(LINE % 10 + LINE.rstrip("\n") % 20, 10, id="a last line without its end"),
        pytest.param(LINE % 10 + '{"step": 2', 10, id="a last line cut off within the step"),
        pytest.param('{"step": 1', 0, id="only a line that is cut off"),
        pytest.param(LINE % 10 + "\0" * 5000, 10, id="zeros after a power cut"),
        pytest.param(LINE % 10 + LINE.replace("{}}", f'"{"x" * TAIL_BYTES}"}}') % 20, 20, id="a line beyond the tail"),
        pytest.param(
            LINE % 10 + LINE.replace("{}}", f'"{"x" * 9 * TAIL_BYTES}"}}') % 20 + '{"step": 30, "te',
            20,
            id="a line far beyond the tail, then one cut off",
        ),
        pytest.param(LINE % 10 + '{"step": 20, "matrices": ' + "9" * 2 * TAIL_BYTES, 10, id="a long line cut off"),
        pytest.param((LINE.replace("{}", '{"step": 7}') % 10) * 3000, 10, id="many lines, and steps within them"),
    ],
)
def test_progress_is_the_step_of_the_last_whole_line(metrics: str, step: int, tmp_path: Path) -> None:
    assert progress_of(metrics, tmp_path) == step


def test_every_length_of_a_last_line_around_the_tail_gives_its_step(tmp_path: Path) -> None:
    for length in range(TAIL_BYTES - 60, TAIL_BYTES + 60):
        long = '{"step": 20, "x": "'
        long += "x" * (length - len(long) - 3) + '"}\n'
        assert len(long) == length
        assert progress_of(LINE % 10 + long, tmp_path) == 20


def test_a_run_without_metrics_has_done_nothing_and_one_with_a_model_all(tmp_path: Path) -> None:
    config = config_of(iterations=6)
    assert steps_done(tmp_path, config) == 0
    (tmp_path / "metrics.jsonl").write_text(LINE % 4)
    (tmp_path / MODEL).write_bytes(b"")
    assert steps_done(tmp_path, config) == 6


class Scripted(Executor):
    """A pool on a clock of its own. A run ends when its seconds are over, each `late`, 2 `late`, ... after that, or at
    once as `outcomes` says.
    """

    def __init__(self, clock: Clock, outcomes: Mapping[Path, list[BaseException | None]], late: float) -> None:
        self.clock, self.outcomes, self.late = clock, dict(outcomes), late
        self.begun: list[Path] = []
        self.beside: list[int] = []  # how many others were being trained when each was begun
        self.seconds: dict[Path, float | None] = {}
        self.ends: dict[Future[Any], float] = {}
        self.pools = 0
        self.breaks_at: set[int] = set()  # submissions that find the pool broken

    def new_pool(self, num_processes: int) -> Scripted:
        self.pools, self.num_processes = self.pools + 1, num_processes
        return self

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        _, path, seconds = arguments
        if (number := len(self.begun)) in self.breaks_at:
            self.breaks_at.remove(number)
            raise BrokenProcessPool("a process was killed")
        self.begun.append(path)
        self.beside.append(sum(not future.done() for future in self.ends))
        self.seconds[path] = seconds
        future: Future[Any] = Future()
        if outcomes := self.outcomes.get(path):
            error = outcomes.pop(0)
            future.set_exception(error) if error else future.set_result(None)
        delay = self.late * (len(self.begun) % self.num_processes)
        self.ends[future] = self.clock.now + (1.0 if seconds is None else seconds) + delay
        return future

    def sleep(self, seconds: float) -> None:
        """Until the next run ends."""
        waiting = [end for future, end in self.ends.items() if not future.done()]
        self.clock.now = max(self.clock.now, min(waiting, default=self.clock.now))
        for future, end in self.ends.items():
            if end <= self.clock.now and not future.done():
                future.set_result(None)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def make(outcomes: Mapping[Path, list[BaseException | None]] | None = None, late: float = 0.0) -> Scripted:
        clock = Clock()
        pool = Scripted(clock, outcomes or {}, late)
        monkeypatch.setattr(clock, "sleep", pool.sleep)
        monkeypatch.setattr(side_by_side, "time", clock)
        monkeypatch.setattr(side_by_side, "_new_pool", pool.new_pool)
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


SIZES = [(1, 1), (6, 1), (2, 2), (2, 16), (3, 2), (4, 2), (6, 2), (12, 4), (20, 16)]


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
    share = 6000.0 / math.ceil(num_runs / num_processes)  # side by side, no run can be cut in two
    assert list(pool.seconds.values()) == pytest.approx([share] * num_runs, rel=0.05)
    assert pool.clock.now - began <= 6000.0 + num_runs * late


def test_time_that_one_run_does_not_need_goes_to_those_that_wait(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    first, *others = configs_in(tmp_path, 4)
    pool = scripted({first: [None]})  # done in no time
    failures_of(configs_in(tmp_path, 4), num_processes=1, seconds=600.0)
    assert pool.seconds[first] == pytest.approx(150)
    assert [pool.seconds[path] for path in others] == pytest.approx([200] * 3)


def test_no_run_is_begun_for_less_than_it_takes_to_start_and_none_after_the_time(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    pool = scripted()
    failures_of(configs_in(tmp_path, 10), num_processes=1, seconds=90.0)
    assert list(pool.seconds.values()) == pytest.approx([30, 30, 30]), "the others have their turn another time"


def test_within_a_time_those_behind_come_first_and_otherwise_all_as_given(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, 4)
    a, b, c, d = configs
    for path, step in ((a, 30), (b, 10), (d, 20)):
        make_up(path, configs[path], [0.5], steps=[step], is_done=False)
    pool = scripted()
    failures_of(configs, num_processes=1, seconds=4000.0)
    assert pool.begun == [c, b, d, a]
    pool = scripted()
    failures_of(configs, num_processes=1)
    assert pool.begun == [a, b, c, d]
    assert set(pool.seconds.values()) == {None}


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
    assert pool.beside[-2:] == [0, 0]
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
    assert pool.begun == list(configs)


def test_what_is_done_is_counted_and_left_alone(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    configs = configs_in(tmp_path, 3)
    done, *others = configs
    make_up(done, configs[done], [0.5])
    pool = scripted()
    assert run_all(configs, lambda share: None, num_processes=1) == 1
    assert pool.begun == others


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
    monkeypatch.setattr(side_by_side, "time", clock)
    monkeypatch.setattr(side_by_side, "_new_pool", lambda num_processes: Here())
    assert failures_of({path: config_of()}, num_processes=1) == {}
    assert sleeps.count(1) == 3
    assert (path / MODEL).exists()


def test_a_folder_that_somebody_goes_on_using_is_a_failure_that_names_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    monkeypatch.setattr(side_by_side, "time", Clock())
    monkeypatch.setattr(side_by_side, "_new_pool", lambda num_processes: Here())
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
    monkeypatch.setattr(folder, "time", clock)
    with pytest.raises(Interrupted, match=r"stopped at step \d+ of 40; saved"):
        mnar.run.new_run(config, tmp_path / "run", until=clock.now + 20)
    assert 2 <= read_metrics(tmp_path / "run")[-1]["step"] <= 20
    with pytest.raises(Interrupted):
        mnar.run.resume_run(tmp_path / "run", until=clock.now - 1)  # even then a step is taken
    mnar.run.resume_run(tmp_path / "run", until=clock.now + 10_000)
    straight, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "run"))
    assert resumed == straight


def test_a_worker_killed_twice_is_a_failure_of_its_run_alone_which_then_goes_on_to_the_same_end(
    monkeypatch: pytest.MonkeyPatch, without_report: None, tmp_path: Path
) -> None:
    """As the kernel does for want of memory."""
    long, short = tmp_path / "long", tmp_path / "short"
    configs = {long: configure(recipe=RECIPE, iterations=200, settings=SELDOM_SAVED), short: config_of(OTHER)}
    kills = list[int]()

    def kill_whoever_trains_the_long_one() -> None:
        for _ in range(2):
            already = steps_done(long, configs[long])
            wait_for(lambda already=already: steps_done(long, configs[long]) > already)  # type: ignore[misc]
            (worker,) = active_children()
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            kills.append(worker.pid)

    killer = threading.Thread(target=kill_whoever_trains_the_long_one, daemon=True)
    killer.start()
    failures = failures_of(configs, num_processes=1)
    killer.join(1)
    assert len(set(kills)) == 2
    assert list(failures) == [long]
    assert "killed, perhaps for want of memory" in failures[long]
    assert (short / MODEL).exists()
    assert not (long / MODEL).exists()
    assert active_children() == []

    monkeypatch.setattr(side_by_side, "_new_pool", lambda num_processes: Here())
    assert failures_of(configs) == {}
    mnar.run.new_run(configs[long], tmp_path / "straight")
    assert (long / "metrics.jsonl").read_bytes() == (tmp_path / "straight/metrics.jsonl").read_bytes()
