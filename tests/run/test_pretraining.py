"""Runs with a stage before: VIME's encoder, trained in a folder of its own within the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import checkpoint, evaluate_run, new_run, resume_run
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display
from mnar.training.trainer import Interrupted
from tests.support.equality import assert_same, assert_same_run
from tests.support.killing import run_under_fire
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")

NUM_CLASSES, NUM_FEATURES, PER_CLASS = 3, 6, 40
SETTINGS = (
    "engine.device=cpu",
    "protocol.gamma=5",
    "model.hidden=[8]",
    "train.batch_labeled=16",
    "train.log_every=5",
    "train.eval_every=10",
    "train.save_every=7",
    "train.validation=0",
    "learner.pretraining_epochs=2",
    "learner.bounded=false",
)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that differ in the mean of two columns each."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(NUM_CLASSES), PER_CLASS)
    rows = random.uniform(0, 0.5, (len(labels), NUM_FEATURES))
    for column in range(2):
        rows[np.arange(len(labels)), 2 * labels + column] += 0.5
    path = tmp_path_factory.mktemp("table") / "own.npz"
    np.savez(path, x_train=rows, y_train=labels, x_test=rows, y_test=labels)
    return path


def vime(table: Path, *settings: str, guidance: str | None = "prg") -> RunConfig:
    return configure(
        dataset="npz",
        data=str(table),
        learner="vime",
        guidance=guidance,
        iterations=30,
        settings=[*SETTINGS, *settings],
    )


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    new_run(vime(table), folder)
    return folder


def test_the_classifier_stands_on_the_encoder_of_the_stage_before_and_leaves_it_as_it_is(straight: Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (straight / "pretraining", straight))
    for name in ("encoder.1.weight", "encoder.1.bias"):
        assert (before[name] == after[name]).all()
    assert (before["layers.0.weight"] != after["layers.0.weight"]).any()


def test_the_stage_before_goes_as_often_over_the_unlabelled_set_as_asked_with_rmsprop(straight: Path) -> None:
    state = checkpoint.load(straight / "pretraining" / "state.pt")[0]
    assert state["steps_done"] == 2 * NUM_CLASSES * PER_CLASS / 16
    config = RunConfig.from_yaml((straight / "pretraining" / "config.yaml").read_text())
    assert (config.learner.name, config.guidance.name, config.train.optimizer) == ("vime_self", "none", "rmsprop")
    assert config.learner.options["mask_rate"] == 0.3


def test_its_loss_goes_down_and_the_classifier_learns(table: Path, tmp_path: Path) -> None:
    settings = ("learner.pretraining_epochs=20", "train.lr=0.005", "train.eval_every=5")
    new_run(vime(table, *settings, guidance="none"), tmp_path / "run")
    lines = RunFolder(tmp_path / "run").evaluations()
    assert (
        lines[-1]["test"]["accuracy"] > 0.6 > lines[0]["test"]["accuracy"]
    )  # 0.67: the class with one label is missed
    short = vime(table, "learner.pretraining_epochs=1", guidance="none")
    new_run(short, tmp_path / "short")
    first, last = (
        RunFolder(tmp_path / name / "pretraining").evaluations()[-1]["train"]["loss"] for name in ("short", "run")
    )
    assert last < first


class StoppedAt(Display):
    """The stage before has no evaluation to wait for."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("step", [6, 12])
def test_a_run_stopped_in_the_stage_before_and_resumed_equals_one_that_was_not(
    straight: Path, table: Path, tmp_path: Path, step: int
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted, match=rf"stopped at step {step} of 15; saved\. .*--resume {folder}$"):
        new_run(vime(table), folder, StoppedAt(step))
    assert not (folder / "state.pt").exists()
    resume_run(folder)
    assert_same_run(folder, straight)
    assert_same_run(folder / "pretraining", straight / "pretraining")


def test_a_run_stopped_after_the_stage_before_and_resumed_equals_one_that_was_not(
    straight: Path, table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted, match="stopped at step 21 of 30"):
        new_run(vime(table), folder, Watching(signal_at=20))
    resume_run(folder)
    assert_same_run(folder, straight)


def test_runs_killed_with_9_in_either_stage_and_resumed_equal_one_that_was_not(
    straight: Path, table: Path, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
        kills = fresh_process.submit(run_under_fire, vime(table), tmp_path / "run", 3).result()
    assert kills >= 2
    assert_same_run(tmp_path / "run", straight)
    assert_same_run(tmp_path / "run" / "pretraining", straight / "pretraining")


def test_an_encoder_of_another_run_gives_the_same_and_saves_the_stage(
    straight: Path, table: Path, tmp_path: Path
) -> None:
    new_run(vime(table, f"learner.encoder={straight / 'pretraining'}"), tmp_path / "run")
    assert not (tmp_path / "run" / "pretraining").exists()
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", straight))
    assert_same(mine, theirs)
    assert evaluate_run(tmp_path / "run") == evaluate_run(straight)


def test_an_encoder_that_is_not_there_is_refused_before_anything_is_written(table: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no encoder at .*nowhere; set learner\.encoder to the folder of"):
        new_run(vime(table, f"learner.encoder={tmp_path / 'nowhere'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_an_encoder_is_refused_as_one(straight: Path, table: Path, tmp_path: Path) -> None:
    settings = ["model.name=mlp", "engine.device=cpu", "protocol.gamma=5", "train.batch_labeled=16"]
    plain = configure(dataset="npz", data=str(table), learner="supervised", iterations=2, settings=settings)
    new_run(plain, tmp_path / "plain")
    with pytest.raises(ValueError, match=r"the encoder in .*plain.*contain no encoder .* run of vime_self"):
        new_run(vime(table, f"learner.encoder={tmp_path / 'plain'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_outside_0_to_1_are_refused_before_anything_is_written(table: Path, tmp_path: Path) -> None:
    for learner in ("vime", "vime_self"):
        settings = [*(setting for setting in SETTINGS if "learner" not in setting), "learner.bounded=true"]
        config = configure(dataset="npz", data=str(table), learner=learner, iterations=3, settings=settings)
        with pytest.raises(ValueError, match=r"features range from -1\.57 to .*choose --set learner\.bounded=false"):
            new_run(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_what_trains_no_classifier_cannot_be_validated(table: Path, tmp_path: Path) -> None:
    settings = [*SETTINGS[:-3], "train.validation=0.2", "learner.bounded=false"]
    config = configure(dataset="npz", data=str(table), learner="vime_self", iterations=3, settings=settings)
    with pytest.raises(
        ValueError, match=r"vime_self trains no classifier to validate; choose --set train\.validation=0"
    ):
        new_run(config, tmp_path / "run")


def test_an_encoder_of_another_width_is_refused_by_name(straight: Path, table: Path, tmp_path: Path) -> None:
    settings = (f"learner.encoder={straight / 'pretraining'}", "model.encoder_width=5")
    with pytest.raises(ValueError, match=r"the encoder in .*pretraining.* does not fit the model"):
        new_run(vime(table, *settings), tmp_path / "run")


def test_vime_on_images_is_refused_with_what_suits(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"vime is for tables, but digits has images; choose --learner from .*fixmatch"
    ):
        new_run(configure(dataset="digits", learner="vime"), tmp_path / "run")
