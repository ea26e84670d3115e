"""`torchrun -m mnar train`: what is refused before the first step, and what happens when a process ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mnar
from mnar import distributed
from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import RunFolder, checkpoint, load_data, new_run, resume_run
from mnar.run.processes import ToldByFirst
from tests.support.command import TINY as TINY_OPTIONS
from tests.support.command import as_options, wait_for
from tests.support.equality import assert_same
from tests.support.processes import free_port, in_processes, torchrun, torchrun_on_two_nodes, workers_of
from tests.support.tiny import TINY

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")

LONGEST_END = 60  # seconds within which a job has to end when one of its processes is killed
LONGEST_JOB = 300  # seconds, on a machine that does other work
RUN = ("--dataset", "digits", "--guidance", "prg", *TINY_OPTIONS)


def finished(job: subprocess.Popen[str], *, seconds: float = LONGEST_JOB) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a job."""
    try:
        output, errors = job.communicate(timeout=seconds)
    finally:
        job.kill()
    return job.returncode, output, errors


# ---- what is refused before the first step


def refusal(make: Callable[[int], tuple[RunConfig, dict[str, Any]]], folder: Path) -> str:
    """The message with which process 0 refuses a run that the processes configure."""
    config, options = make(distributed.rank())
    out = folder / str(distributed.rank()) if options.pop("apart", False) else folder / "run"
    if options.pop("is_used", False):
        out.mkdir(parents=True)
        (out / "notes.txt").touch()
    error = ValueError if distributed.rank() == 0 else ToldByFirst
    with pytest.raises(error) as caught:
        new_run(config, out, **options)
    return str(caught.value)


def tiny(*settings: str) -> RunConfig:
    return configure(dataset="digits", iterations=10, settings=[*TINY, *settings])


def odd_batch(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    return tiny("train.batch_unlabeled=33"), {}


def odd_stage(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    return tiny("train.batch_stages=[0.1,1]"), {}


def other_rate(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    return tiny(f"train.lr=0.0{rank + 1}"), {}


def other_data(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    data = load_data(tiny())
    return tiny(), {"data": data._replace(train_x=data.train_x + rank)}


def one_cannot_write(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    return tiny(), {"apart": True, "is_used": rank == 1}


def folders_apart(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    return tiny(), {"apart": True}


def other_version(rank: int) -> tuple[RunConfig, dict[str, Any]]:
    mnar.__version__ = f"{rank}.0"
    return tiny(), {}


REFUSED = {
    odd_batch: r"train.batch_unlabeled gives 33 samples per step, which 2 processes cannot share equally; .* 32 or 34",
    odd_stage: r"train.batch_unlabeled gives 3 samples per step, which 2 processes cannot share .* 2 or 4",
    other_rate: r"process 0 and process 1 differ in train.lr: 0.01 and 0.02. Start all processes with the same command",
    other_data: r"process 0 and process 1 differ in data \(hash\): \w+ and \w+. Start",
    one_cannot_write: r"process 1 of 2 cannot start: .*exists and is not an empty folder; choose another --out",
    folders_apart: r"process 1 of 2 cannot start: .*do not share the run folder; choose --out on a file system that",
    other_version: r"process 0 and process 1 differ in version of mnar: 0.0 and 1.0. Start .* the same versions",
}


def refusals(folder: Path, foreign: Path) -> list[str]:
    """The messages about all configurations of REFUSED, and then about resuming with the checkpoint of another run."""
    messages = [refusal(make, folder / make.__name__) for make in REFUSED]
    with pytest.raises(ValueError if distributed.rank() == 0 else ToldByFirst) as caught:
        resume_run(foreign)
    return [*messages, str(caught.value)]


def test_process_0_says_why_a_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    run, other = tmp_path / "run_of_prg", tmp_path / "run_of_cadr"
    for folder, guidance in ((run, "prg"), (other, "cadr")):
        new_run(tiny(f"guidance.name={guidance}"), folder)
    shutil.copy(other / "state.pt", run / "state.pt")
    messages, silent = in_processes(2, tmp_path / "two", refusals, tmp_path, run)
    assert re.search(r"state\.pt was made with another configuration: guidance\.name: cadr and prg", messages.pop())
    assert silent.pop() == ""
    for (make, expected), message in zip(REFUSED.items(), messages, strict=True):
        with pytest.raises(ValueError, match=expected):
            raise ValueError(message)
        if make not in (folders_apart, one_cannot_write):
            assert not (tmp_path / make.__name__).exists(), make.__name__
    left = [file.name for file in (tmp_path / folders_apart.__name__ / "0").iterdir()]
    assert set(left) <= {".lock"}, "the folder can be used again"
    assert silent == [""] * len(REFUSED), "the other processes leave the message to process 0"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--backend", "nccl"), "--backend nccl needs GPUs, but torch sees none"),
        (("--set", "engine.device=cuda"), "engine.device is 'cuda', but torch sees no CUDA device"),
        (("--set", "guidance.alpha=-1"), "guidance.alpha (prg) is -1; expected a number"),
    ],
)
def test_what_cannot_be_trained_is_refused_once(options: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    code, _, errors = finished(torchrun(*RUN, *options, "--out", tmp_path / "run"))
    assert code != 0
    assert errors.count(expected) == 1, errors
    assert "SIGABRT" not in errors, "the processes end by themselves"
    assert not (tmp_path / "run").exists()


# ---- a process that ends


@pytest.mark.parametrize("is_launched", [True, False])
def test_only_a_process_of_torchrun_ends_without_the_clean_up_of_python(is_launched: bool) -> None:
    """A thread of gloo can abort the process during the clean-up, once in about 30 runs on busy cores."""
    script = "import atexit; atexit.register(print, 'cleaned up'); from mnar.cli import main; main()"
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    arguments = ["train", "--dataset", "digits", "--guidance", "prg", "--set", "guidance.alpha=-1"]
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **(variables if is_launched else {})},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "guidance.alpha (prg) is -1" in ended.stderr, "the message is not lost"
    assert ("cleaned up" in ended.stdout) != is_launched


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing stops."""
    folder = tmp_path_factory.mktemp("torchrun") / "straight"
    code, output, errors = finished(torchrun(*RUN, "--iterations", 60, "--out", folder))
    assert code == 0, errors
    assert output.count("step 60/60") == 1, "only process 0 prints"
    return folder


def assert_same_training(one: Path, other: Path) -> None:
    assert RunFolder(one).evaluations() == RunFolder(other).evaluations()
    assert_same(checkpoint.load(one / "state.pt")[0], checkpoint.load(other / "state.pt")[0])
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_two_nodes_train_the_run_of_two_processes_of_one_node(straight: Path, tmp_path: Path) -> None:
    nodes = torchrun_on_two_nodes(*RUN, "--iterations", 60, "--out", tmp_path / "run")
    outputs = []
    for node in nodes:
        code, output, errors = finished(node)
        assert code == 0, errors
        outputs.append(output)
    assert "".join(outputs).count("step 60/60") == 1, "only process 0 prints"
    assert_same_training(tmp_path / "run", straight)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "written"), [(0, "config.yaml"), (1, "state.pt"), (0, "state.previous.pt")])
def test_a_process_killed_at_any_moment_ends_the_job_and_resuming_gives_the_run_that_nothing_stopped(
    victim: int, written: str, straight: Path, tmp_path: Path
) -> None:
    """The moment is when a file of the run has just been written; benchmarks/killed_process.py has random moments."""
    folder = tmp_path / "run"
    job = torchrun(*RUN, "--iterations", 60, "--out", folder)
    wait_for((folder / written).exists, seconds=LONGEST_JOB)
    os.kill(workers_of(job)[victim], signal.SIGKILL)
    code, _, errors = finished(job, seconds=LONGEST_END)
    assert code != 0
    if victim == 1:
        assert errors.count("is kept. Continue with: mnar train --resume") == 1, errors
    assert not (folder / "model.safetensors").exists()
    code, _, errors = finished(torchrun("--resume", folder))
    assert code == 0, errors
    assert_same_training(folder, straight)


@pytest.mark.slow
def test_torchrun_starts_a_killed_job_again_and_it_goes_on_from_its_checkpoint(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = torchrun(*RUN, "--iterations", 60, "--out", folder, options=("--max-restarts=1",))
    wait_for((folder / "state.pt").exists, seconds=LONGEST_JOB)
    os.kill(workers_of(job)[1], signal.SIGKILL)
    code, output, errors = finished(job)
    assert code == 0, errors
    assert ", from step " in output
    assert_same_training(folder, straight)


def test_a_signal_to_torchrun_saves_a_checkpoint_from_which_one_process_continues(
    straight: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    job = torchrun(*RUN, "--iterations", 60, "--out", folder)
    wait_for((folder / "metrics.jsonl").exists, seconds=LONGEST_JOB)
    job.send_signal(signal.SIGTERM)
    code, _, errors = finished(job)
    assert code != 0
    assert errors.count("saved. Continue with: mnar train --resume") == 1, errors
    stopped_at = checkpoint.load(folder / "state.pt")[0]["steps_done"]
    assert 0 < stopped_at < 60
    resume_run(folder)
    steps = [line["step"] for line in RunFolder(folder).evaluations()]
    assert steps == [line["step"] for line in RunFolder(straight).evaluations()]
    assert [session.get("processes") for session in RunFolder(folder).environment()["sessions"]] == [2, None]


# ---- a stage that trains the encoder first


def test_two_processes_train_the_encoder_first_and_continue_it_after_a_stop(tmp_path: Path) -> None:
    table = ("--dataset", "digits_tabular", "--learner", "vime", "--guidance", "prg", "--iterations", 20)
    sizes = ("train.batch_labeled=16", "train.batch_unlabeled=32", "train.save_every=5", "train.log_every=5")
    command = (*table, *as_options((*sizes, "learner.pretraining_epochs=5", "engine.device=cpu")))
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    code, _, errors = finished(torchrun(*command, "--out", straight))
    assert code == 0, errors
    job = torchrun(*command, "--out", stopped)
    wait_for((stopped / "pretraining" / "state.pt").exists, seconds=LONGEST_JOB)
    job.send_signal(signal.SIGTERM)
    code, _, errors = finished(job)
    assert code != 0
    assert errors.count(f"Continue with: mnar train --resume {stopped}") == 1, errors
    code, _, errors = finished(torchrun("--resume", stopped))
    assert code == 0, errors
    for part in (".", "pretraining"):
        assert_same_training(stopped / part, straight / part)
