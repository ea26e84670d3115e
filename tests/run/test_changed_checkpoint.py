"""A checkpoint that is not what was written is never used without a word: the run takes the one before and warns."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mnar.run import checkpoint, evaluate_run, new_run, resume_run
from mnar.run.checkpoint import DamagedCheckpoint, load, previous
from mnar.training.trainer import Interrupted
from tests.conftest import Configure
from tests.support.equality import assert_same, assert_same_run
from tests.support.methods import method_settings
from tests.support.watching import Watching

Change = Callable[[dict[str, Any]], object]
REQUIRED = ("model", "average", "optimizer", "learner", "meters", "random", "steps_done", "config")


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


@pytest.fixture
def state(stopped: Path) -> Path:
    return stopped / "state.pt"


def stored(path: Path) -> dict[str, Any]:
    """What stands in the file, with its format and its digest."""
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def changed(path: Path, change: Change) -> None:
    """Change the content of the file, and keep the digest."""
    content = stored(path)
    change(content)
    torch.save(content, path)


def resealed(path: Path, change: Change) -> None:
    """Change the content of the file, and store the digest of the new content."""
    content = copy.deepcopy(load(path)[0])
    change(content)
    before = previous(path).read_bytes()
    checkpoint.save(path, content)
    previous(path).write_bytes(before)


def as_version_0_1_0(path: Path, change: Change = lambda content: None) -> None:
    """Change the content of the file, and store neither a format nor a digest."""
    content = {name: value for name, value in stored(path).items() if name not in ("format", "digest")}
    change(content)
    torch.save(content, path)


def put(value: Any, *names: str | int) -> Change:
    """Return a change of one entry."""

    def change(content: Any) -> None:
        for name in names[:-1]:
            content = content[name]
        content[names[-1]] = value

    return change


def assert_falls_back(folder: Path, problem: str, finished_run: Path) -> None:
    """Resume, and expect a warning that names file and problem, and the result of a run that was not interrupted."""
    display = Watching()
    resume_run(folder, display)
    assert display.began_at == 28
    (warning, *_) = display.warnings
    assert str(folder / "state.pt") in warning
    assert problem in warning
    assert "continuing from the checkpoint of step 28" in warning
    assert "\n" not in warning
    assert_same_run(folder, finished_run)


@pytest.mark.parametrize(
    "change",
    [
        put(21, "steps_done"),
        put(torch.zeros(10), "model", "head.bias"),
        put(torch.tensor(0.5), "optimizer", "state", 0, "momentum_buffer"),
        put(["error"], "meters", "names"),
        put(1, "generation"),
        lambda content: content["random"]["cpu"][0].add_(1),
        lambda content: content["model"]._metadata["layers"].update(version=7),
    ],
    ids=["steps_done", "weights", "momentum", "names", "generation", "random", "module version"],
)
def test_a_changed_value_is_found_by_the_digest(finished_run: Path, state: Path, change: Change) -> None:
    changed(state, change)
    assert_falls_back(state.parent, "the digest does not match", finished_run)


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("rewrite", [changed, resealed, as_version_0_1_0])
def test_a_missing_entry_is_named(state: Path, name: str, rewrite: Callable[[Path, Change], None]) -> None:
    rewrite(state, lambda content: content.pop(name))
    loaded, problems = load(state)
    assert loaded["steps_done"] == 28
    assert problems == [f"{state} is damaged ({name} is missing)"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (put("x", "steps_done"), "steps_done is 'x'"),
        (put(41, "steps_done"), "steps_done is 41, not a number from 0 to 40"),
        (put(-1, "steps_done"), "steps_done is -1, not a number from 0 to 40"),
        (put(1, "generation"), "generation is 1, not a number from 0 to 0"),
        (put(5, "config"), "config is '5'"),
        (put("[", "config"), "does not fit the run"),
        (put([], "model"), "model is '[]'"),
        (put(torch.zeros(3), "model", "head.bias"), "size mismatch for head.bias"),
        (put(torch.zeros(10, dtype=torch.int64), "average", "head.bias"), "average.head.bias has the type torch.int64"),
        (lambda content: content["model"].pop("head.bias"), "model.head.bias is missing"),
        (put(3, "model", "head.bias"), "model.head.bias is no tensor"),
        (put(torch.zeros(3), "optimizer", "state", 0, "momentum_buffer"), "optimizer.state.0.momentum_buffer has the"),
        (put({}, "optimizer", "state", 999), "optimizer.state has an entry 999"),
        (lambda content: content["optimizer"]["param_groups"].pop(), "optimizer.param_groups have"),
        (put(torch.zeros(9), "meters", "sums"), "meters.sums has the shape (9,)"),
        (put(torch.zeros(1, 1), "meters", "pseudo_confusion"), "meters.pseudo_confusion has the shape (1, 1)"),
        (lambda content: content["learner"].popitem(), "Missing key"),
        (put(torch.zeros(3), "random", "cpu"), "does not fit the run"),
        (lambda content: content["random"].pop("cuda"), "cuda is missing"),
        (put({"selection": {"rows": 1}}, "loader"), "loader.selection has no rows and labels"),
    ],
)
@pytest.mark.parametrize("rewrite", [resealed, as_version_0_1_0])
def test_a_state_that_does_not_fit_the_run_is_skipped_even_with_a_valid_digest(
    finished_run: Path, state: Path, change: Change, problem: str, rewrite: Callable[[Path, Change], None]
) -> None:
    rewrite(state, change)
    assert_falls_back(state.parent, problem, finished_run)


def test_if_no_checkpoint_fits_one_line_names_what_is_missing_in_each_and_the_remedy(state: Path) -> None:
    resealed(state, lambda content: content["model"].pop("head.bias"))
    changed(previous(state), lambda content: content.pop("random"))
    with pytest.raises(DamagedCheckpoint) as error:
        resume_run(state.parent)
    assert str(error.value) == (
        f"{state} does not fit the run (model.head.bias is missing); {previous(state)} is damaged (random is missing); "
        "no complete checkpoint is left, so start a new run"
    )


def test_a_checkpoint_without_the_digest_that_its_format_promises_is_refused(state: Path) -> None:
    changed(state, lambda content: content.pop("digest"))
    assert load(state)[1] == [f"{state} is damaged (its digest is missing)"]


@pytest.mark.filterwarnings("error")
def test_what_torch_says_to_programmers_is_not_shown(state: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        changed(state, put(torch.zeros(2).storage(), "deprecated"))
    assert "is damaged (a TypedStorage has no digest" in load(state)[1][0]
    changed(state, put(Path("x"), "no plain value"))
    assert load(state)[1] == [f"{state} is damaged (it contains other things than tensors and plain values)"]


def test_a_checkpoint_of_a_later_format_is_refused_with_both_numbers(state: Path) -> None:
    changed(state, put(3, "format"))
    assert load(state)[1] == [f"{state} is damaged (its format is 3, and this version of mnar reads 2)"]


def test_a_checkpoint_of_version_0_1_0_has_no_digest_and_is_loaded(finished_run: Path, state: Path) -> None:
    for path in (state, previous(state)):
        as_version_0_1_0(path)
    display = Watching()
    resume_run(state.parent, display)
    assert display.began_at == 31
    assert display.warnings[0].startswith(f"{state} has no digest, as in earlier versions of mnar, so it cannot be")
    assert_same_run(state.parent, finished_run)


def test_a_tensor_that_would_fill_the_memory_is_refused(state: Path) -> None:
    changed(state, put(torch.zeros(1).expand(10**13), "model", "head.bias"))
    assert load(state)[1] == [f"{state} is damaged (a tensor is larger than the file)"]


def test_evaluating_an_unfinished_run_takes_the_checkpoint_before_a_damaged_one(state: Path) -> None:
    before = load(previous(state))[0]
    changed(state, put(torch.zeros(10), "average", "head.bias"))
    assert_same(load(state)[0], before)
    assert evaluate_run(state.parent)["accuracy"] > 0


def test_a_selection_of_rows_that_do_not_exist_is_skipped(tmp_path: Path, tiny: Configure) -> None:
    config = tiny(*method_settings("ups", "prg"), "train.save_every=1", iterations=6)
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "run", Watching(signal_at=2))
    state = tmp_path / "run/state.pt"
    resealed(state, lambda content: content["loader"]["selection"]["rows"].fill_(10**6))
    display = Watching()
    resume_run(state.parent, display)
    (warning, *_) = display.warnings
    assert "loader.selection.rows has other values than numbers from 0 to" in warning
