"""A run folder: what it holds, and that nothing that happens to a run loses it."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from mnar import checkpoint
from mnar.checkpoint import DamagedCheckpoint
from mnar.config import RunConfig
from mnar.meters import Diverged
from mnar.report import read_metrics
from mnar.run import evaluate_run, load_data, make_model, new_run, resume_run
from mnar.train import Interrupted
from tests.equality import assert_same_run
from tests.killing import run_under_fire
from tests.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")
Configure = Callable[..., RunConfig]


def test_a_run_folder_holds_what_the_design_says(finished_run: Path) -> None:
    names = {path.name for path in finished_run.iterdir()}
    assert names == {
        ".lock",
        "config.yaml",
        "split.json",
        "environment.json",
        "metrics.jsonl",
        "state.pt",
        "state.previous.pt",
        "model.safetensors",
        "report.html",
    }
    split = json.loads((finished_run / "split.json").read_text())
    assert split["labeled"] == [20, 15, 11, 8, 6, 4, 3, 2, 2, 1]
    assert sum(split["unlabeled"]) == 1297
    assert sum(split["test"]) == 500
    assert len(split["hash"]) == 64
    assert [line["step"] for line in read_metrics(finished_run)] == [10, 20, 30, 40]
    environment = json.loads((finished_run / "environment.json").read_text())
    assert [(session["from_step"], session["to_step"]) for session in environment["sessions"]] == [(0, 40)]


def test_a_run_repeated_gives_the_same_files_and_another_seed_others(
    finished_run: Path, tmp_path: Path, tiny: Configure
) -> None:
    new_run(tiny(), tmp_path / "again")
    assert_same_run(tmp_path / "again", finished_run)
    sections = tiny().to_dict() | {"seed": 2}
    new_run(RunConfig.from_dict(sections), tmp_path / "other")
    for name in ("split.json", "metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "other" / name).read_bytes() != (finished_run / name).read_bytes()


def test_the_model_file_scores_as_the_last_evaluation_did_and_says_what_it_needs(
    finished_run: Path, tiny: Configure
) -> None:
    scores = evaluate_run(finished_run)
    last = read_metrics(finished_run)[-1]
    assert {name: scores[name] for name in last["test"]} == last["test"]
    assert scores["confusion"] == last["matrices"]["test_confusion"]
    with safe_open(finished_run / "model.safetensors", "pt") as file:
        needs = json.loads(file.metadata()["mnar"])
        assert set(file.keys()) == set(make_model(tiny(), load_data(tiny())).state_dict())
    assert needs["class_names"] == [str(digit) for digit in range(10)]
    assert needs["input_shape"] == [1, 8, 8]
    assert needs["model"] == {"name": "small_cnn", "width": 4}


# ---- interrupted runs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_ctrl_c_save_and_name_the_command_that_resumes(
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
    for name in ("state.pt", "state.previous.pt", "environment.json", "split.json"):
        (stopped / name).unlink()
    resume_run(stopped)
    assert_same_run(stopped, finished_run)


@pytest.mark.parametrize("torn", ['{"step": 31, "test": {"acc', "\x00\x00\x00", "{"])
def test_half_a_last_line_of_metrics_is_dropped(finished_run: Path, stopped: Path, torn: str) -> None:
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert [line["step"] for line in read_metrics(stopped)] == [10, 20, 30]
    resume_run(stopped)
    assert_same_run(stopped, finished_run)


def test_damage_in_the_middle_of_the_metrics_is_an_error_that_names_the_line(stopped: Path) -> None:
    path = stopped / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:50], lines[2]]) + "\n")
    with pytest.raises(ValueError, match=rf"line 2 of {path} is not JSON"):
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
    assert "going on from the checkpoint of step 28" in warning
    assert_same_run(stopped, finished_run)


def test_two_damaged_checkpoints_are_an_error_and_nothing_is_touched(stopped: Path) -> None:
    for name in ("state.pt", "state.previous.pt"):
        (stopped / name).write_bytes(b"nonsense")
    metrics = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(DamagedCheckpoint, match=r"state\.pt.*state\.previous\.pt.*begin a new run"):
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


def test_data_that_gives_another_split_is_refused(stopped: Path) -> None:
    split = json.loads((stopped / "split.json").read_text())
    (stopped / "split.json").write_text(json.dumps({**split, "hash": "0" * 64}))
    with pytest.raises(ValueError, match=r"another split .*--data"):
        resume_run(stopped)


# ---- folders


def test_a_folder_that_holds_a_run_is_refused_with_the_command_that_resumes(stopped: Path, tiny: Configure) -> None:
    metrics = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match=rf"holds a run already; .*mnar train --resume {stopped}"):
        new_run(tiny(), stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == metrics


def test_a_folder_with_other_things_or_a_file_is_refused_and_left_alone(tmp_path: Path, tiny: Configure) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(FileExistsError, match="not an empty folder; choose another --out"):
            new_run(tiny(), out)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    for use in (resume_run, evaluate_run):
        with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config\.yaml"):
            use(tmp_path)


def test_a_damaged_configuration_is_refused_with_its_path(stopped: Path) -> None:
    (stopped / "config.yaml").write_text("train: [")
    with pytest.raises(ValueError, match=str(stopped / "config.yaml")):
        resume_run(stopped)


def test_an_unfinished_run_has_no_model_to_evaluate_yet(stopped: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"mnar train --resume {stopped}"):
        evaluate_run(stopped)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("protocol.gamma=0", "gamma"),
        ("protocol.gamma=-3", "gamma"),
        ("protocol.gamma=1000", "class 0 was asked for 1000 labelled samples"),
        ("train.batch_unlabeled=5000", "batch_unlabeled is 5000, but there are 1297"),
        ("guidance.window=0", "window is 0"),
        ("guidance.alpha=-1", "alpha is -1"),
        ("learner.threshold=2", "threshold is 2"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, tiny: Configure, setting: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        new_run(tiny(setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- what goes wrong while training


@pytest.mark.parametrize("eval_every", [1, 2, 3, 10])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint_and_says_what_to_try(
    tmp_path: Path, tiny: Configure, eval_every: int
) -> None:
    folder = tmp_path / "run"
    config = tiny("train.lr=1e15", "train.save_every=1", f"train.eval_every={eval_every}", "train.log_every=1")
    with pytest.raises(Diverged, match=r"not a number after step .* is kept in .*train\.lr=0\.01"):
        new_run(config, folder)
    state, problems = checkpoint.load(folder / "state.pt")
    assert problems == []
    assert state["steps_done"] >= 1
    assert all(torch.isfinite(weights).all() for weights in state["model"].values())
    assert not (folder / "model.safetensors").exists()
