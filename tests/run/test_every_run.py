"""Runs of every learner for images: cut off and resumed they are the same, and what they leave can be scored."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from mnar.config import RunConfig
from mnar.learners import LEARNERS
from mnar.run import checkpoint, evaluate_run, new_run, resume_run
from mnar.run.assemble import load_data, make_model
from mnar.run.folder import RunFolder
from mnar.training.trainer import Interrupted
from tests.support.equality import assert_same_run
from tests.support.killing import die_between_generations
from tests.support.methods import IMAGE_METHODS, method_settings
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")
Configure = Callable[..., RunConfig]
HEADS = {
    "remixmatch": {"rotation"},
    "comatch": {"projection"},
    "simmatch": {"projection"},
    "acr": {"plain"},
}


def has_heads(learner: str) -> bool:
    return "heads" in vars(LEARNERS[learner])


class Pair(NamedTuple):
    config: RunConfig
    finished: Path
    cut_off: Path  # at step 6 of 12, within the second of three generations where there are any


@pytest.fixture(scope="module", params=IMAGE_METHODS, ids="+".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: Configure) -> Pair:
    config = tiny(*method_settings(*request.param), "train.eval_every=5", iterations=12)
    folder = tmp_path_factory.mktemp("pair")
    new_run(config, folder / "finished")
    with pytest.raises(Interrupted, match="stopped at step 6 of 12"):
        new_run(config, folder / "cut_off", Watching(signal_at=5))
    return Pair(config, folder / "finished", folder / "cut_off")


def test_a_run_cut_off_and_resumed_equals_one_that_was_not(pair: Pair, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pair.cut_off, tmp_path / "run"))
    resume_run(folder)
    assert_same_run(folder, pair.finished)


def test_a_run_is_scored_when_finished_and_when_cut_off(pair: Pair) -> None:
    last = RunFolder(pair.finished).evaluations()[-1]
    scores = evaluate_run(pair.finished)
    assert {name: scores[name] for name in last["test"]} == last["test"]
    assert not (pair.cut_off / "model.safetensors").exists()
    assert sum(map(sum, evaluate_run(pair.cut_off)["confusion"])) == 500


def test_heads_are_trained_and_kept_to_go_on_with_but_not_handed_out(pair: Pair) -> None:
    classifier = set(make_model(pair.config, load_data(pair.config)).state_dict())
    assert set(load_file(pair.finished / "model.safetensors")) == classifier
    before, after = (checkpoint.load(run / "state.pt")[0] for run in (pair.cut_off, pair.finished))
    for part in ("model", "average"):
        heads = {name for name in after[part] if name not in classifier}
        assert {name.split(".")[1] for name in heads} >= HEADS.get(pair.config.learner.name, set())
        assert bool(heads) == has_heads(pair.config.learner.name)
        assert all(name.startswith("heads.") for name in heads)
        assert not any(torch.equal(before[part][name], after[part][name]) for name in heads)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_run_with_another_optimiser_cut_off_and_resumed_equals_one_that_was_not(
    tmp_path: Path, tiny: Configure, optimizer: str
) -> None:
    settings = (f"train.optimizer={optimizer}", "train.schedule=constant", "train.lr=0.002", "train.eval_every=5")
    config = tiny(*settings, iterations=12)
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "run", Watching(signal_at=5))
    resume_run(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


# ---- generations, killed


def ups(tiny: Configure, *settings: str) -> RunConfig:
    """Three generations, which end at the steps 2, 4 and 6."""
    return tiny(*method_settings("ups", "prg"), *settings, iterations=6)


def test_what_every_generation_selected_is_kept(tmp_path: Path, tiny: Configure) -> None:
    new_run(ups(tiny), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run/selections").iterdir()) == ["01.safetensors", "02.safetensors"]
    lines = {line["generation"]: line for line in RunFolder(tmp_path / "run").evaluations()}
    for generation in (1, 2):
        selection = load_file(tmp_path / f"run/selections/0{generation}.safetensors")
        assert set(selection) == {"rows", "labels", "pool", "negative"}
        assert len(selection["rows"]) == len(selection["labels"]) == lines[generation]["selection"]["accepted"] > 0
    last = checkpoint.load(tmp_path / "run/state.pt")[0]["loader"]["selection"]
    assert all(torch.equal(last[name], selection[name]) for name in selection)


def contents(folder: Path) -> str:
    """What resuming can see of a run."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name not in (".lock", "environment.json", "environment.json.part"):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def test_a_run_killed_with_9_at_any_moment_between_two_generations_and_resumed_equals_one_that_was_not(
    tmp_path: Path, tiny: Configure
) -> None:
    config, folder = ups(tiny, "train.eval_every=1", "train.save_every=1"), tmp_path / "run"
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted, match="stopped at step 3 of 6"):
        new_run(config, folder, Watching(signal_at=2))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
        left = fresh_process.submit(die_between_generations, folder).result()
    assert len(left) > 30, "a selection, a checkpoint, and the environment"
    different = {contents(run): run for run in left}
    steps = [checkpoint.load(run / "state.pt")[0]["steps_done"] for run in different.values()]
    assert set(steps) == {3, 4}, "before and after the next generation is saved"
    for run in different.values():
        resume_run(run)
        assert_same_run(run, tmp_path / "straight")


def test_a_run_whose_first_checkpoint_was_due_between_generations_is_refused_without_it(
    tmp_path: Path, tiny: Configure
) -> None:
    settings = ("train.eval_every=1", "train.save_every=1000")
    new_run(ups(tiny, *settings), tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(ups(tiny, *settings), tmp_path / "run", Watching(signal_at=2))
    for state in (tmp_path / "run").glob("state*.pt"):
        state.unlink()
    with pytest.raises(FileNotFoundError, match=r"state\.pt is missing, although the run has got past step"):
        resume_run(tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))  # as if killed before it was saved
    resume_run(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")
