"""Interrupted runs: nothing that happens to a run loses it."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mnar.atomic_write import sealed
from mnar.config import RunConfig
from mnar.run import checkpoint, evaluate_run, new_run, resume_run, runner
from mnar.run.checkpoint import DamagedCheckpoint
from mnar.run.folder import RunFolder
from mnar.run.reader import read_run
from mnar.run.recorder import RunRecorder
from mnar.training.trainer import Interrupted, Trainer
from tests.support.equality import assert_same_run
from tests.support.killing import run_under_fire
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")
Configure = Callable[..., RunConfig]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_sigterm_ctrl_c_and_a_closed_terminal_save_and_name_the_command_that_resumes(
    tmp_path: Path, tiny: Configure, number: int
) -> None:
    folder, before = tmp_path / "run", signal.getsignal(number)
    with pytest.raises(Interrupted, match=rf"stopped at step 21 of 40; saved\. .*mnar train --resume {folder}"):
        new_run(tiny(), folder, Watching(signal_at=20, number=number))
    assert checkpoint.load(folder / "state.pt")[0]["steps_done"] == 21
    assert signal.getsignal(number) is before


def test_a_stopped_run_resumed_twice_equals_one_that_was_not(
    finished_run: Path, tmp_path: Path, tiny: Configure
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        new_run(tiny(), folder, Watching(signal_at=10))
    with pytest.raises(Interrupted):
        resume_run(folder, Watching(signal_at=30))
    resume_run(folder)
    assert_same_run(folder, finished_run)
    sessions = json.loads((folder / "environment.json").read_text())["sessions"]
    assert [(session["from_step"], session["to_step"]) for session in sessions] == [(0, 11), (11, 31), (31, 40)]


def test_a_finished_run_resumed_stays_as_it_is(finished_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (folder / "model.safetensors").unlink()  # as if killed after the last checkpoint
    resume_run(folder)
    assert_same_run(folder, finished_run)


def test_runs_killed_with_9_at_any_moment_and_resumed_equal_one_that_was_not(
    finished_run: Path, tmp_path: Path, tiny: Configure
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
        folders = [tmp_path / f"run{seed}" for seed in range(2)]
        kills = [fresh_process.submit(run_under_fire, tiny(), folder, seed) for seed, folder in enumerate(folders)]
        assert sum(future.result() for future in kills) >= 5
    for folder in folders:
        assert_same_run(folder, finished_run)


def test_a_run_killed_before_its_first_checkpoint_begins_again_the_same(finished_run: Path, stopped: Path) -> None:
    for name in ("state.pt", "state.previous.pt", "environment.json", "split.json", "metrics.jsonl"):
        (stopped / name).unlink()
    resume_run(stopped)
    assert_same_run(stopped, finished_run)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize("save_every", [10, 1000])
def test_a_run_killed_between_an_evaluation_and_its_first_checkpoint_begins_again_the_same(
    finished_run: Path, tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch, save_every: int
) -> None:
    def die(path: Path, state: dict[str, Any]) -> None:
        raise Killed

    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "save", die)
    with pytest.raises(Killed):
        new_run(tiny(f"train.save_every={save_every}"), folder)
    monkeypatch.undo()
    assert [line["step"] for line in RunFolder(folder).evaluations()] == [*range(10, min(save_every, 40) + 1, 10)]
    resume_run(folder)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (folder / name).read_bytes() == (finished_run / name).read_bytes()


@pytest.mark.parametrize("run", ["stopped", "finished"])
def test_a_run_whose_checkpoints_are_gone_is_refused_and_nothing_of_it_is_lost(
    finished_run: Path, stopped: Path, tmp_path: Path, run: str
) -> None:
    folder = stopped if run == "stopped" else Path(shutil.copytree(finished_run, tmp_path / "finished"))
    for name in ("state.pt", "state.previous.pt"):
        (folder / name).unlink()
    before = files_of(folder)
    with pytest.raises(FileNotFoundError, match=rf"{folder / 'state.pt'} is missing, .*or start a new run"):
        resume_run(folder)
    assert files_of(folder) == before


def test_a_model_without_its_checkpoints_is_not_trained_again_though_none_was_due(
    tmp_path: Path, tiny: Configure
) -> None:
    folder = tmp_path / "run"
    new_run(tiny("train.save_every=1000", iterations=10), folder)
    (folder / "state.pt").unlink()
    with pytest.raises(FileNotFoundError, match="is missing"):
        resume_run(folder)


@pytest.mark.parametrize("torn", ['{"step": 31, "test": {"acc', "\x00\x00\x00", "{"])
def test_half_a_last_line_of_metrics_is_dropped(finished_run: Path, stopped: Path, torn: str) -> None:
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert [line["step"] for line in RunFolder(stopped).evaluations()] == [10, 20, 30]
    resume_run(stopped)
    assert_same_run(stopped, finished_run)


@pytest.mark.parametrize(
    ("left", "missing"),
    [
        (None, 10),
        ([], 10),
        ([20, 30], 10),
        ([10, 30], 20),
        ([10, 20], 30),
        ([10, 20, "torn"], 30),
    ],
)
def test_a_run_without_an_evaluation_that_its_checkpoint_is_after_is_refused_and_stays_as_it_is(
    stopped: Path, left: list[int | str] | None, missing: int
) -> None:
    path = stopped / "metrics.jsonl"
    lines = {line["step"]: json.dumps(line) + "\n" for line in RunFolder(stopped).evaluations()} | {
        "torn": '{"step": 30, "te'
    }
    path.unlink()
    if left is not None:
        path.write_text("".join(lines[step] for step in left))
    before = files_of(stopped)
    remedy = f"restore the file, or remove {stopped} and train the run again"
    refusal = f"{path} has no evaluation of step {missing}, although the checkpoint is of step 31; {remedy}"
    with pytest.raises(ValueError, match=f"^{refusal}$"):
        resume_run(stopped)
    assert files_of(stopped) == before


def test_a_run_that_ended_between_two_evaluations_is_refused_without_its_last(tmp_path: Path, tiny: Configure) -> None:
    folder = tmp_path / "run"
    new_run(tiny(iterations=15), folder)
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole.splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match="has no evaluation of step 15, although the checkpoint is of step 15"):
        resume_run(folder)
    (folder / "metrics.jsonl").write_text(whole)
    resume_run(folder)
    assert (folder / "metrics.jsonl").read_text() == whole


def test_a_finished_run_that_goes_on_from_an_earlier_checkpoint_has_no_model_as_long_as_it_lacks_an_evaluation(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (folder / "state.pt").write_bytes(b"nonsense")

    def die(trainer: Trainer, recorder: RunRecorder) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", die)
        with pytest.raises(Killed):
            resume_run(folder)
    assert read_run(folder).step == 30, "no gap in it"
    resume_run(folder)
    assert_same_run(folder, finished_run)


@pytest.mark.parametrize(
    ("kept", "missing", "because"),
    [
        ([], 10, "model.safetensors exists"),
        ([10, 20], 30, "model.safetensors exists"),
        ([20, 30, 40], 10, "there is one of step 40"),
        ([10, 20, 40], 30, "there is one of step 40"),
    ],
)
def test_a_finished_run_without_an_evaluation_is_not_read_as_if_it_had_the_others_alone(
    finished_run: Path, tmp_path: Path, kept: list[int], missing: int, because: str
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    lines = [line for line in RunFolder(folder).evaluations() if line["step"] in kept]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    refusal = f"{folder / 'metrics.jsonl'} has no evaluation of step {missing}, although {because}; restore the file"
    with pytest.raises(ValueError, match=refusal):
        read_run(folder)


def test_a_damaged_step_of_many_billions_is_refused_at_once(finished_run: Path, tmp_path: Path) -> None:
    """A list of all steps up to it would not fit into the memory."""
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    *lines, last = RunFolder(folder).evaluations()
    lines.append({**last, "step": 2**60})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=f"although there is one of step {2**60}; restore the file"):
        read_run(folder)


@pytest.mark.parametrize(
    ("instead", "problem"),
    [('{"step": 20, "te', "is not JSON"), ("20", "is damaged"), ("{}", "is damaged")],
)
def test_damage_in_the_middle_of_the_metrics_is_an_error_that_names_the_line(
    stopped: Path, instead: str, problem: str
) -> None:
    path = stopped / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], instead, lines[2]]) + "\n")
    with pytest.raises(ValueError, match=rf"line 2 of {path} {problem}"):
        resume_run(stopped)


def test_a_damaged_checkpoint_falls_back_and_newer_metrics_are_measured_again(
    finished_run: Path, stopped: Path
) -> None:
    state = stopped / "state.pt"
    state.write_bytes(state.read_bytes()[:2000])
    display = Watching()
    resume_run(stopped, display)
    assert display.began_at == 28  # so the evaluation of step 30 is newer
    (warning, *_) = display.warnings
    assert str(state) in warning
    assert "continuing from the checkpoint of step 28" in warning
    assert_same_run(stopped, finished_run)


def test_two_damaged_checkpoints_are_an_error_and_nothing_is_touched(stopped: Path) -> None:
    for name in ("state.pt", "state.previous.pt"):
        (stopped / name).write_bytes(b"nonsense")
    metrics = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(DamagedCheckpoint, match=r"state\.pt.*state\.previous\.pt.*start a new run"):
        resume_run(stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [("train", "lr", 0.01), ("guidance", "alpha", 2.0), ("model", "width", 8), ("protocol", "gamma", 10.0)],
)
def test_a_checkpoint_of_another_configuration_is_refused_by_the_name_of_the_field(
    stopped: Path, section: str, option: str, value: float
) -> None:
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    before = config[section][option]
    config[section][option] = value
    (stopped / "config.yaml").write_text(yaml.safe_dump(config))
    state = (stopped / "state.pt").read_bytes()
    with pytest.raises(ValueError, match=rf"{section}\.{option}: {before} and {value}"):
        resume_run(stopped)
    assert (stopped / "state.pt").read_bytes() == state


def test_speed_may_change_between_sessions(finished_run: Path, stopped: Path) -> None:
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    config["engine"] = {**config["engine"], "precision": "float32", "compile": False}
    (stopped / "config.yaml").write_text(yaml.safe_dump(config))
    resume_run(stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == (finished_run / "metrics.jsonl").read_bytes()


def test_engine_settings_given_when_resuming_count_and_the_configuration_stays(
    finished_run: Path, stopped: Path
) -> None:
    resume_run(stopped, settings=("engine.precision=bfloat16", "engine.compile=false"))
    assert (stopped / "config.yaml").read_bytes() == (finished_run / "config.yaml").read_bytes()
    lines, expected = RunFolder(stopped).evaluations(), RunFolder(finished_run).evaluations()
    assert lines[:3] == expected[:3], "before it was resumed"
    assert lines[3] != expected[3], "rounded otherwise"
    assert lines[3]["train"]["loss"] == pytest.approx(expected[3]["train"]["loss"], rel=0.1)


def test_engine_settings_given_when_evaluating_count(finished_run: Path) -> None:
    plain, rounded = (
        evaluate_run(finished_run, settings=settings)["calibration_error"]
        for settings in ((), ("engine.precision=bfloat16",))
    )
    assert rounded != plain
    assert rounded == pytest.approx(plain, abs=0.01)


def test_other_settings_given_when_resuming_or_evaluating_are_refused(stopped: Path) -> None:
    state = (stopped / "state.pt").read_bytes()
    for use in (resume_run, evaluate_run):
        with pytest.raises(ValueError, match=r"--set train\.lr=1 would change the run"):
            use(stopped, settings=("engine.compile=false", "train.lr=1"))
    assert (stopped / "state.pt").read_bytes() == state


def test_data_that_gives_another_split_is_refused(stopped: Path) -> None:
    split = json.loads((stopped / "split.json").read_text())
    (stopped / "split.json").write_text(json.dumps(sealed({**split, "hash": "0" * 64})))
    with pytest.raises(ValueError, match=r"the data differ from the data that the run .*--data"):
        resume_run(stopped)


def test_a_run_with_a_drawn_test_set_resumes_and_is_evaluated_on_the_test_set_of_its_seed(
    tmp_path: Path, tiny: Configure
) -> None:
    config = replace(tiny("dataset.test_set=drawn"), seed=5)
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "run", Watching(signal_at=20))
    resume_run(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    last = RunFolder(tmp_path / "run").evaluations()[-1]["test"]
    assert evaluate_run(tmp_path / "run")["accuracy"] == pytest.approx(last["accuracy"])


def test_a_run_is_not_resumed_with_another_test_set(stopped: Path) -> None:
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    config["dataset"]["test_set"] = "drawn"
    (stopped / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=r"test_set"):
        resume_run(stopped)
