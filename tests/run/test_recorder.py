"""Who may write to a run folder, and what happens when writing fails or a signal comes."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mnar.config import RunConfig
from mnar.run import checkpoint, evaluate_run, folder, new_run, resume_run
from mnar.run.lock import locked
from mnar.run.reader import read_run
from mnar.run.recorder import Display
from mnar.run.stopping import StopFlag, stopping_on_signals
from tests.support.equality import assert_same_run
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")
Configure = Callable[..., RunConfig]


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(stopped: Path) -> None:
    with locked(stopped), pytest.raises(FileExistsError, match=rf"in use by process {os.getpid()}; .*another --out"):
        resume_run(stopped)
    with locked(stopped):
        pass  # free again


class FullDisk:
    """Stands for checkpoint.save: no space at some steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps, self.save = steps, checkpoint.save

    def __call__(self, path: Path, state: dict[str, Any]) -> None:
        if state["steps_done"] in self.steps:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.save(path, state)


def test_a_full_disk_while_saving_is_a_warning_and_the_run_goes_on(
    finished_run: Path, tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save", FullDisk({7, 28}))
    folder, display = tmp_path / "run", Watching()
    new_run(tiny(), folder, display)
    first, second = (text for text in display.warnings if "could not save" in text)
    assert "step 7" in first
    assert "No space left" in first
    assert "there is no checkpoint yet" in first
    assert "the checkpoint of step 21 is kept; training continues" in second
    monkeypatch.undo()
    assert (folder / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def test_a_full_disk_at_the_last_step_is_an_error_that_names_the_command_that_resumes(
    finished_run: Path, tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "save", FullDisk({40}))
    with pytest.raises(
        OSError, match=rf"checkpoint of step 35 is kept; free some disk space .*mnar train --resume {folder}"
    ):
        new_run(tiny(), folder)
    monkeypatch.undo()
    resume_run(folder)
    assert_same_run(folder, finished_run)


class DiskFull(Display):
    """Before the evaluation of step 20 the metrics go to a device that is always full."""

    def __init__(self, metrics: Path) -> None:
        self.metrics = metrics

    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None:
        if step == 15:
            self.metrics.rename(self.metrics.with_suffix(".kept"))
            self.metrics.symlink_to("/dev/full")


def test_a_full_disk_while_recording_metrics_is_an_error_that_names_the_command_that_resumes(
    finished_run: Path, tmp_path: Path, tiny: Configure
) -> None:
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"
    with pytest.raises(OSError, match=rf"step 20 .*checkpoint of step 14 is kept; .*mnar train --resume {folder}"):
        new_run(tiny(), folder, DiskFull(metrics))
    metrics.unlink()
    metrics.with_suffix(".kept").rename(metrics)
    resume_run(folder)
    assert_same_run(folder, finished_run)


def test_a_warning_about_health_is_given_once_not_at_every_evaluation(tmp_path: Path, tiny: Configure) -> None:
    display = Watching()
    new_run(tiny("learner.threshold=1.0", "guidance.name=none"), tmp_path / "run", display)
    assert len(display.warnings) == 2
    assert "no pseudo-label for 0, 1, 2, 3, 4 and 5 more" in display.warnings[0]
    assert "mask rate has collapsed" in display.warnings[1]


class ReadsEnvironment(Display):
    """Reads environment.json when the run starts."""

    environment: dict[str, Any]

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None:
        self.environment = json.loads((folder / "environment.json").read_text())


def test_the_environment_is_written_at_the_start_and_keeps_that_of_each_session(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = json.loads((stopped / "environment.json").read_text())["sessions"]
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    display = ReadsEnvironment()
    resume_run(stopped, display)
    assert display.environment["device"] == "abacus"
    sessions = display.environment["sessions"]
    assert sessions[:-1] == first
    assert (sessions[-1]["device"], sessions[-1]["from_step"], sessions[-1]["to_step"]) == ("abacus", 31, 31)
    assert sessions[0]["device"] != "abacus"


def test_an_environment_that_cannot_be_written_does_not_stop_a_run(
    finished_run: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused, display = folder.write_atomically, list[Path](), Watching()

    def full_for_the_environment(path: Path, content: bytes | str) -> None:
        if path.name == "environment.json" and display.began_at is not None:
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(folder, "write_atomically", full_for_the_environment)
    resume_run(stopped, display)
    assert len(refused) == 2, "at the checkpoints of steps 35 and 40"
    assert not any("could not" in text for text in display.warnings)
    assert_same_run(stopped, finished_run)


@pytest.mark.parametrize("name", ["environment.json", "split.json"])
@pytest.mark.parametrize("damage", [None, "", "{"])
@pytest.mark.parametrize("run", ["stopped", "finished"])
def test_a_damaged_environment_or_split_is_written_anew_as_the_error_says(
    finished_run: Path, stopped: Path, tmp_path: Path, run: str, name: str, damage: str | None
) -> None:
    folder = stopped if run == "stopped" else Path(shutil.copytree(finished_run, tmp_path / "finished"))
    (folder / name).unlink()
    if damage is not None:
        (folder / name).write_text(damage)
    with pytest.raises(ValueError, match=rf"{name}.*remove it and run `mnar train --resume {folder}`"):
        read_run(folder)
    (folder / name).unlink(missing_ok=True)
    resume_run(folder)
    assert read_run(folder).is_finished
    assert_same_run(folder, finished_run)


def test_a_folder_of_run_folders_is_refused_with_one_of_them(finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bench/runs/digits/cadr-g20/fixmatch/seed-1"
    shutil.copytree(finished_run, folder)
    for use in (evaluate_run, resume_run):
        with pytest.raises(FileNotFoundError, match=rf"it has no config\.yaml; name a run folder, such as {folder}$"):
            use(tmp_path / "bench")
        with pytest.raises(FileNotFoundError, match=r"nothing is not a run folder.*the folder given as --out$"):
            use(tmp_path / "nothing")


@pytest.mark.parametrize("damage", [lambda text: text[:100], lambda text: text.replace("lr:", "rl:")])
def test_a_configuration_that_was_cut_off_or_changed_is_named_as_damaged(
    stopped: Path, damage: Callable[[str], str]
) -> None:
    path = stopped / "config.yaml"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=f"{path} is damaged or was changed: .*; restore the original file"):
        resume_run(stopped)


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    flag = StopFlag()
    flag(signal.SIGINT, None)
    assert flag.is_set
    with pytest.raises(KeyboardInterrupt):
        flag(signal.SIGINT, None)


def test_a_second_sigterm_waits_as_the_first() -> None:
    flag = StopFlag()
    for _ in range(2):
        flag(signal.SIGTERM, None)
    assert flag.is_set


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with stopping_on_signals() as flag:
            seen.append((flag.is_set, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
