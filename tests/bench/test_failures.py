from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mnar.run
from mnar.bench import check, choose, parallel
from mnar.config import RunConfig
from mnar.training.meters import Diverged
from mnar.types import DataSet
from tests.bench.benches import (
    ABSENT,
    OTHER,
    RECIPE,
    Command,
    arguments_for,
    bench_in,
    entries,
    ignore_progress,
    make_up,
    stop_at,
)
from tests.support.command import run_here

WITH_CADR = f"{RECIPE}+cadr"
MUON = ("--set", "train.optimizer=muon")

# Cells that fail


def test_a_missing_data_set_is_a_failure_with_a_remedy_and_does_not_stop_the_other_runs(
    command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = command(ABSENT, RECIPE, *arguments_for(out), "--data", tmp_path / "nowhere")
    assert outcome.code == 1
    assert f"{ABSENT}: seed 1 failed" in outcome.output.splitlines()
    assert f"failed: {ABSENT}: data set 'cifar10' is not in {tmp_path / 'nowhere'}" in outcome.output
    assert "cifar-10-python.tar.gz" in outcome.output
    cells = entries(out)
    assert (cells[ABSENT]["n"], cells[RECIPE]["n"]) == (0, 1)
    for kind in ("json", "md", "html"):
        assert "cifar-10-python.tar.gz" in (out / f"results.{kind}").read_text()
    shown = command(ABSENT, RECIPE, *arguments_for(out), "--show")
    assert shown.code == 1
    assert set(shown.output.splitlines()) <= set(outcome.output.splitlines())
    assert (shown.errors, outcome.errors) == ("", "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Diverged("a loss is not a number"), "Diverged: a loss is not a number"),
        (RuntimeError("CUDA is lost\nand so on\nfor pages"), "RuntimeError: CUDA is lost"),
        (MemoryError(), "MemoryError"),
        (KeyError("name"), "KeyError: 'name'"),
        (ValueError("class 3 has no sample"), "class 3 has no sample"),
        (ValueError(), "ValueError"),
        (OSError(28, "No space left"), "[Errno 28] No space left"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_run_with_an_error_is_shown_with_the_reason_and_tried_again_by_the_next_command(
    error: Exception, reason: str, command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def new_run(config: RunConfig, path: Path, **options: Any) -> None:
        if config.guidance.name == "none":
            raise error
        mnar.run.new_run(config, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(parallel, "new_run", new_run)
        outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert outcome.code == 1
    assert outcome.errors == ""
    lines = outcome.output.splitlines()
    assert lines.index(f"{RECIPE}: seed 1 failed") < lines.index(f"failed: {RECIPE}: {reason}")
    first, *below = (out / "runs" / RECIPE / "seed-1.failed").read_text().splitlines()
    assert (first, below[0]) == (reason, "Traceback (most recent call last):")
    assert any(", in new_run" in line for line in below), "the place of the error"
    assert all(line in below for line in str(error).splitlines()[1:])
    cells = entries(out)
    assert (cells[RECIPE]["n"], cells[RECIPE]["failures"]) == (0, {"1": reason})
    assert (cells[OTHER]["n"], cells[OTHER]["failures"]) == (1, {})

    again = command(RECIPE, OTHER, *arguments_for(out))
    assert (again.code, again.errors) == (0, "")
    assert list(out.rglob("*.failed")) == []
    assert {name: (entry["n"], entry["failures"]) for name, entry in entries(out).items()} == {
        RECIPE: (1, {}),
        OTHER: (1, {}),
    }


def test_the_traceback_of_a_run_in_its_own_process_is_kept_in_a_file(tmp_path: Path) -> None:
    bench = bench_in(tmp_path / "out", RECIPE)
    path = bench.folders[RECIPE][1]
    path.mkdir(parents=True)
    (path / "notes.txt").write_text("of the user")  # no run starts in a folder with other files
    (cell,) = bench.run(ignore_progress)
    first, *below = path.with_suffix(".failed").read_text().splitlines()
    assert cell.failures == {1: first}
    assert first == f"{path} exists and is not an empty folder; choose another --out"
    assert "Traceback (most recent call last):" in below
    assert any(", in check_new_folder" in line for line in below), "the place of the error"


STAGES = "train.batch_stages=[0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1]"
NO_WEAK_GRADIENT = ("--set", "learner.weak_gradient=false")


@pytest.mark.parametrize(
    ("cell", "given", "message"),
    [
        (RECIPE, ["--set", STAGES], "train.batch_stages has 7 stages, but train.iterations is 6, and each stage needs"),
        (
            RECIPE,
            ["--set", "guidance.name=crest", "--set", "guidance.generations=7"],
            "train.iterations is 6, which is",
        ),
        (WITH_CADR, ["--schedule", "fast", *NO_WEAK_GRADIENT], "learner.weak_gradient is false, but the labelled loss"),
        ("tabular-digits", ["--schedule", "fast", "--set", "model.hidden=[]", *MUON], "train.optimizer is 'muon', but"),
        (ABSENT, ["--data", "nowhere"], "data set 'cifar10' is not in "),
    ],
    ids=["stages", "generations", "learner", "optimiser", "data"],
)
def test_what_no_run_can_have_is_refused_with_the_message_of_train_before_a_process_starts(
    cell: str,
    given: list[str],
    message: str,
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(parallel, "ChildProcess", lambda *arguments: pytest.fail("started a process"))
    refused = command(cell, "--out", tmp_path / "out", "--seeds", 2, "--iterations", 6, *given)
    assert (refused.code, refused.output) == (1, "")
    assert refused.errors.startswith(f"error: {message}")
    assert not (tmp_path / "out").exists()
    recipe = choose([cell])[0]
    trained = run_here(capsys, monkeypatch, "train", "--recipe", recipe, "--iterations", 6, *given)
    assert (trained.code, trained.errors) == (1, refused.errors)


def test_a_recipe_that_cannot_be_trained_starts_no_process_and_the_others_are_trained(
    command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = list[Path]()

    def new_run(config: RunConfig, path: Path, **options: Any) -> None:
        started.append(path)
        mnar.run.new_run(config, path, **options)

    monkeypatch.setattr(parallel, "new_run", new_run)
    out = tmp_path / "out"
    outcome = command(RECIPE, WITH_CADR, *arguments_for(out, seeds=2), *NO_WEAK_GRADIENT)
    assert (outcome.code, outcome.errors) == (1, "")
    assert sorted(started) == [out / "runs" / RECIPE / f"seed-{seed}" for seed in (1, 2)]
    failure = f"failed: {WITH_CADR}: learner.weak_gradient is false, but the labelled loss of"
    assert outcome.output.count(failure) == 1
    assert entries(out)[RECIPE]["done"] == 2
    assert failure in command("--show", "--out", out).output


def test_a_check_reads_a_data_set_once_and_skips_runs_that_exist(
    trained: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def load_data(config: RunConfig) -> DataSet:
        read.append(config.dataset.name)
        return mnar.run.load_data(config)

    monkeypatch.setattr(check, "load_data", load_data)
    assert check.refused_runs(bench_in(trained, seeds=(1, 2)).configs) == {}
    assert read == []
    assert check.refused_runs(bench_in(trained, seeds=(1, 2, 3, 4)).configs) == {}
    assert read == ["digits"]


def test_a_setting_that_does_not_suit_one_cell_does_not_stop_the_other_cells(
    command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = command(RECIPE, OTHER, *arguments_for(out), "--set", "guidance.alpha=2")  # RECIPE has no guidance
    assert outcome.code == 1
    assert "unknown option of guidance none: 'alpha'" in outcome.output
    assert entries(out)[OTHER]["n"] == 1


def test_a_run_whose_report_cannot_be_written_is_finished_by_the_next_command(
    command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def write_run_report(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parallel, "write_run_report", write_run_report)
        first = command(RECIPE, *arguments_for(out))
    again = command(RECIPE, *arguments_for(out))
    assert first.code == 1
    assert "could not write the model and the report ([Errno 28] No space left on device)" in first.output
    assert (again.code, again.errors) == (0, "")
    assert (entries(out)[RECIPE]["done"], entries(out)[RECIPE]["failures"]) == (1, {})
    assert list(out.rglob("*.failed")) == []


@pytest.mark.parametrize("is_done", [True, False])
def test_a_failed_run_that_the_user_then_finished_is_not_a_failure(
    is_done: bool, command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = bench_in(out, RECIPE).folders[RECIPE][1]

    def new_run(config: RunConfig, path: Path, **options: object) -> None:
        stop_at(3, path, config)
        raise OSError(28, "No space left")

    monkeypatch.setattr(parallel, "new_run", new_run)
    assert command(RECIPE, *arguments_for(out)).code == 1
    if is_done:
        mnar.run.resume_run(path)  # as `mnar train --resume` does
    assert path.with_suffix(".failed").exists()
    shown = command(RECIPE, *arguments_for(out), "--show")
    assert shown.code == (0 if is_done else 1)
    assert ("No space left" in shown.output) == (not is_done)


# Folders that were left half-written


@pytest.mark.parametrize(
    "left",
    [(), (".lock",), ("config.yaml.part",), (".lock", "config.yaml.part")],
    ids=lambda left: " ".join(left) or "empty",
)
def test_a_run_that_was_killed_before_its_first_step_is_trained_from_the_start(
    left: tuple[str, ...], trained: Path, here: None, tmp_path: Path
) -> None:
    bench = bench_in(tmp_path / "out", RECIPE)
    path = bench.folders[RECIPE][1]
    path.mkdir(parents=True)
    for name in left:
        (path / name).write_text("dataset:\n  na")
    assert bench.cells()[0].missing == "seed 1 not started"
    bench.run(ignore_progress)
    cell = bench.cells()[0]
    assert (cell.missing, cell.failures) == ("", {})
    first = trained / path.relative_to(bench.folder)
    assert (path / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("left", ['{"step": 4, "te', '{"step": 4', "\0" * 100], ids=["a line", "a step", "zeros"])
def test_a_run_whose_last_line_of_metrics_was_cut_off_resumes_to_the_same_metrics(
    left: str, trained: Path, here: None, tmp_path: Path
) -> None:
    bench = bench_in(tmp_path / "out", RECIPE)
    ((path, config),) = bench.configs.items()
    stop_at(3, path, config)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(left)
    cell = bench.cells()[0]
    assert (cell.missing, cell.failures) == ("seed 1 at step 2", {})
    bench.run(ignore_progress)
    assert bench.cells()[0].missing == ""
    first = trained / path.relative_to(bench.folder)
    assert (path / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


def test_a_run_that_was_saved_before_its_first_evaluation_counts_as_started(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, RECIPE)
    ((path, config),) = bench.configs.items()
    stop_at(1, path, config)
    assert (path / "state.pt").exists()
    assert bench.cells()[0].missing == "seed 1 before its first evaluation"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.yaml", lambda text: text[:100]),
        ("config.yaml", lambda text: b""),
        ("config.yaml", lambda text: b"\x80\xff"),
        ("metrics.jsonl", lambda text: b"}{\n" + text),
        ("state.pt", lambda text: text[:1000]),
        ("environment.json", lambda text: text[:20]),
        ("environment.json", lambda text: b"{}"),
        ("environment.json", lambda text: b"[]"),
        ("environment.json", lambda text: text.replace(b'"sessions"', b'"seasons"')),
        ("split.json", lambda text: text[:20]),
    ],
    ids=[
        *("config cut off", "config empty", "config not text", "metrics", "state"),
        *("environment cut off", "environment empty", "environment a list", "environment without sessions", "split"),
    ],
)
def test_a_damaged_unfinished_run_is_a_failure_that_names_the_file_and_does_not_stop_the_other_runs(
    name: str, damage: Callable[[bytes], bytes], command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out).configs.items()))
    stop_at(3, path, config)
    (path / name).write_bytes(damage((path / name).read_bytes()))
    before = (path / name).read_bytes()
    outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert outcome.code == 1
    assert outcome.errors == ""
    assert (entries(out)[OTHER]["n"], entries(out)[OTHER]["failures"]) == (1, {})
    assert (path / name).read_bytes() == before, "the user may repair the file"
    assert f"failed: {RECIPE}: " in outcome.output
    assert str(path / name) in outcome.output

    shutil.rmtree(path)
    assert command(RECIPE, OTHER, *arguments_for(out)).code == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "dataset:\n  name: dig"),
        ("config.yaml", "dataset: [\n"),
        ("metrics.jsonl", "}{\n{}\n"),
        ("metrics.jsonl", '{"step": 2}\n'),
        ("metrics.jsonl", "[]\n"),
        ("environment.json", "{"),
        ("environment.json", "{}"),
        ("environment.json", "[]"),
        ("environment.json", '{"device": "a machine", "commit": null}'),
        ("split.json", "{"),
    ],
)
def test_a_damaged_finished_run_is_a_failure_that_names_the_file_and_does_not_stop_the_other_runs(
    name: str, content: str, command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out).configs.items()))
    make_up(path, config, [0.5])
    (path / name).write_text(content)
    outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert outcome.code == 1
    assert entries(out)[OTHER]["n"] == 1
    assert entries(out)[RECIPE]["n"] == 0
    assert (path / name).read_text() == content
    assert outcome.errors == ""
    assert str(path / name) in outcome.output


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
@pytest.mark.parametrize("damage", [None, lambda text: b"", lambda text: text[: len(text) // 3]])
def test_a_finished_run_that_lost_a_file_is_a_failure_until_its_folder_is_removed(
    name: str, damage: Callable[[bytes], bytes] | None, trained: Path, command: Command, here: None
) -> None:
    path = trained / "runs" / RECIPE / "seed-1"
    path.with_suffix(".json").unlink(missing_ok=True)
    content = (path / name).read_bytes()
    (path / name).unlink()
    if damage:
        (path / name).write_bytes(damage(content))
    for more in ((), ("--show",)):
        outcome = command(RECIPE, *arguments_for(trained, seeds=2), *more)
        assert (outcome.code, outcome.errors) == (1, "")
        (failure,) = [line for line in outcome.output.splitlines() if line.startswith(f"failed: {RECIPE}: ")]
        assert str(path / name) in failure
        assert f"{RECIPE}: seed 1 failed" in outcome.output.splitlines()
        assert "To train a run from the start, remove its folder (runs/RECIPE/seed-N) first" in outcome.output
    assert command(RECIPE, "--show", "--out", trained).code == 1
    shutil.rmtree(path)
    assert command(RECIPE, *arguments_for(trained, seeds=2)).code == 0
    assert (path / "metrics.jsonl").exists()


@pytest.mark.parametrize("left", [None, b""])
def test_an_unfinished_run_that_lost_its_metrics_is_a_failure_without_results(
    left: bytes | None, command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out, RECIPE).configs.items()))
    stop_at(3, path, config)
    (path / "metrics.jsonl").unlink()
    if left is not None:
        (path / "metrics.jsonl").write_bytes(left)
    outcome = command(RECIPE, *arguments_for(out))
    assert (outcome.code, outcome.errors) == (1, "")
    missing = f"{path / 'metrics.jsonl'} has no evaluation of step 2, although the checkpoint is of step 3"
    assert f"failed: {RECIPE}: {missing}" in outcome.output
    assert entries(out)[RECIPE]["n"] == 0


def test_an_evaluation_without_scores_is_a_failure_that_names_the_line_and_does_not_stop_the_other_runs(
    command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out).configs.items()))
    stop_at(3, path, config)
    (path / "metrics.jsonl").write_text('{"step": 2}\n')
    outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert (outcome.code, outcome.errors) == (1, "")
    assert (entries(out)[RECIPE]["n"], entries(out)[OTHER]["n"]) == (0, 1)
    assert f"failed: {RECIPE}: line 1 of {path / 'metrics.jsonl'} " in outcome.output


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_environment_file_is_a_failure_also_before_the_first_evaluation(
    content: str, command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out).configs.items()))
    stop_at(1, path, config)
    (path / "environment.json").write_text(content)
    outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert (outcome.code, outcome.errors) == (1, "")
    assert f"failed: {RECIPE}: {path / 'environment.json'} is damaged" in outcome.output
    assert entries(out)[OTHER]["n"] == 1
