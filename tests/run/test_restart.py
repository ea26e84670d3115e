"""A run that does not learn: a warning, one restart with a smaller learning rate, and a failure in words."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import RunFolder, collapse_record, load_data, new_run, resume_run, runner
from mnar.run.collapse_record import CollapseRecord, read_collapses, record_collapse, remedies, with_smaller_rate
from mnar.training.collapse import Collapsed
from mnar.training.trainer import Interrupted
from tests.support.equality import assert_same_run
from tests.support.killing import Trap, in_a_child, kill_me, was_killed
from tests.support.watching import Watching

Configure = Callable[..., RunConfig]
LEARNS_AFTER_RESTART = ("train.collapse=restart", "train.lr=2")
NEVER_LEARNS = ("train.collapse=restart", "train.lr=10")


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory, tiny: Configure) -> Path:
    """A run that collapsed at step 10 and was restarted. For reading only."""
    folder = tmp_path_factory.mktemp("restarted") / "run"
    display = Watching()
    new_run(tiny(*LEARNS_AFTER_RESTART), folder, display)
    (folder / "warnings.json").write_text(json.dumps(display.warnings))
    return folder


def test_a_collapsed_run_is_restarted_once_and_equals_a_run_with_a_tenth_of_the_rate(
    restarted: Path, tmp_path: Path, tiny: Configure
) -> None:
    new_run(tiny("train.collapse=fail", "train.lr=0.2"), tmp_path / "run")
    assert_same_run(restarted, tmp_path / "run")
    assert RunFolder(restarted).config().train.lr == 0.2


def test_the_run_folder_and_the_terminal_say_why_a_run_was_restarted(restarted: Path) -> None:
    (record,) = read_collapses(restarted)
    assert (record["step"], record["lr"], record["action"]) == (10, 2.0, "restarted")
    warning, *_ = json.loads((restarted / "warnings.json").read_text())
    assert warning.startswith(record["seen"])
    assert warning.endswith("after step 10 of 40; the run starts again with a learning rate of 0.2 instead of 2")


def test_a_restart_killed_at_any_moment_and_resumed_equals_one_that_was_not(
    restarted: Path, tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.record_collapse

    def die_after(moments: int, folder: Path, record: CollapseRecord) -> None:
        """Set the trap when the restart begins; its end is the first checkpoint of the second attempt."""
        Trap(moments, kill_me).set(monkeypatch)
        real(folder, record)

    num_died = 0
    for moments in range(1, 41, 3):  # the restart has about 30 moments; later ones are those of any run
        folder = tmp_path / f"run{moments}"
        monkeypatch.setattr(runner, "record_collapse", partial(die_after, moments))
        num_died += was_killed(in_a_child(partial(new_run, tiny(*LEARNS_AFTER_RESTART), folder)))
        monkeypatch.undo()
        resume_run(folder)
        assert_same_run(folder, restarted)
    assert num_died >= 10


def test_a_stop_request_at_the_collapse_stops_the_run_and_resuming_restarts_it(
    restarted: Path, tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(runner, "record_collapse", lambda *of: (record_collapse(*of), _ask_this_process_to_stop()))
    with pytest.raises(Interrupted, match=r"stopped at step 10, where the run would start again .* --resume"):
        new_run(tiny(*LEARNS_AFTER_RESTART), folder)
    monkeypatch.undo()
    resume_run(folder)
    assert_same_run(folder, restarted)


def test_a_restart_that_was_stopped_is_not_continued_with_other_data(
    tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(runner, "record_collapse", lambda *of: (record_collapse(*of), _ask_this_process_to_stop()))
    with pytest.raises(Interrupted):
        new_run(tiny(*LEARNS_AFTER_RESTART), folder)
    monkeypatch.undo()
    before = (folder / "config.yaml").read_bytes()
    data = load_data(RunFolder(folder).config())
    with pytest.raises(ValueError, match=r"the data differ from the data that the run in .* started with"):
        resume_run(folder, data=data._replace(train_x=data.train_x + 1))
    assert (folder / "config.yaml").read_bytes() == before


def _ask_this_process_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_collapse_is_reported_as_a_failure_with_what_was_seen_and_what_to_try(
    tmp_path: Path, tiny: Configure
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Collapsed) as caught:
        new_run(tiny(*NEVER_LEARNS), folder)
    text = str(caught.value)
    assert text.startswith(f"training failed in {folder}: the model is right for")
    assert "(learning rate 10, then 1). No model was written. Try a lower learning rate (--set train.lr=0.1)" in text
    assert "more labels of 5, 6, 7, 8, 9, or the labels alone (--learner supervised), with another --out" in text
    assert "threshold" not in text
    assert [record["action"] for record in read_collapses(folder)] == ["restarted", "failed"]
    assert not RunFolder(folder).is_finished


def test_a_failed_run_fails_again_when_it_is_resumed(tmp_path: Path, tiny: Configure) -> None:
    for train in (partial(new_run, tiny(*NEVER_LEARNS)), resume_run):
        with pytest.raises(Collapsed, match="training failed"):
            train(tmp_path / "run")
    assert [record["action"] for record in read_collapses(tmp_path / "run")] == ["restarted", "failed"]


def test_a_loss_that_is_not_finite_restarts_the_run_too(tmp_path: Path, tiny: Configure) -> None:
    with pytest.raises(Collapsed, match="training failed"):
        new_run(tiny("train.collapse=restart", "train.lr=1e15", "train.log_every=1"), tmp_path / "run")
    first, *_ = read_collapses(tmp_path / "run")
    assert "not a finite number" in first["seen"]


def test_a_benchmark_run_is_only_warned_about_and_the_warning_is_recorded(tmp_path: Path, tiny: Configure) -> None:
    folder, display = tmp_path / "run", Watching()
    new_run(tiny("train.lr=2"), folder, display)
    assert RunFolder(folder).is_finished
    (warning,) = display.warnings  # one, although several checks found it, and no advice about thresholds
    assert (
        "so the run does not learn; its scores mean nothing. Try a lower learning rate (--set train.lr=0.2)" in warning
    )
    records = read_collapses(folder)
    assert records[0]["step"] == 10
    assert {record["action"] for record in records} == {"warned"}


def test_a_healthy_run_has_no_record(finished_run: Path) -> None:
    assert read_collapses(finished_run) == []
    assert not (finished_run / "collapse.json").exists()


def test_the_same_check_is_recorded_once(tmp_path: Path) -> None:
    record: CollapseRecord = {"step": 5, "lr": 0.1, "seen": "x", "action": "warned"}
    for seen in ("x", "y"):
        record_collapse(tmp_path, {**record, "seen": seen})
    assert [entry["seen"] for entry in read_collapses(tmp_path)] == ["y"]


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "collapse.json").write_text("[{")
    with pytest.raises(ValueError, match=r"collapse\.json is damaged"):
        read_collapses(tmp_path)


@pytest.mark.parametrize(("rate", "smaller"), [(0.03, 0.003), (0.0017, 0.00017), (2.0, 0.2)])
def test_the_smaller_rate_is_a_tenth_without_rounding_errors(tiny: Configure, rate: float, smaller: float) -> None:
    config = with_smaller_rate(tiny(f"train.lr={rate}", "train.collapse=restart"))
    assert (config.train.lr, config.train.collapse) == (smaller, "fail")
    assert collapse_record.RATE_OF_RESTART == 0.1


def own_config(learner: str) -> RunConfig:
    return configure(dataset="own_data", data="x.csv", learner=learner, guidance="none", settings=["train.lr=0.03"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (own_config("pseudo_label"), ["a", "b", "c"], [9, 4, 0], 8),
            ["rate (--set train.lr=0.003)", "labels of b, c", "larger images (--size 64)", "--learner supervised"],
        ),
        ((own_config("supervised"), ["a", "b"], [9, 9], 64), ["rate (--set train.lr=0.003)"]),
        ((own_config("supervised"), [*"abcdefg"], [1] * 7, None), ["rate", "a, b, c, d, e and 2 further classes"]),
    ],
)
def test_remedies_fit_the_run(arguments: tuple[Any, ...], expected: list[str]) -> None:
    *advice, last = remedies(*arguments)
    assert last.startswith("`mnar inspect`")
    assert len(advice) == len(expected)
    assert all(part in text for part, text in zip(expected, advice, strict=True))
