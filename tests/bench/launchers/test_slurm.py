"""Jobs through submitit, with its local executor: the jobs are processes of this machine instead of Slurm's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from mnar.bench.launchers import make_launcher
from mnar.bench.parallel import run_all, steps_done
from mnar.recipes import configure
from mnar.run.folder import RunFolder
from mnar.run.lock import InUse, locked
from tests.bench.benches import (
    LONG,
    OTHER,
    RECIPE,
    SELDOM_SAVED,
    arguments_for,
    bench_in,
    ignore_progress,
    metrics_below,
)
from tests.support.command import start, wait_for

submitit = pytest.importorskip("submitit", reason="needs pip install 'mnar[slurm]'")
pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def launcher_of(*options: str) -> Any:
    return make_launcher("slurm", ["cluster=local", *options])


def failures_of(launcher: Any, configs: Any, folder: Path) -> dict[Path, Exception]:
    failures: dict[Path, Exception] = {}
    with launcher.opened(folder):
        number = launcher.num_at_once(list(configs.values()), None, None)
        run_all(
            configs,
            ignore_progress,
            num_processes=number,
            on_failure=failures.__setitem__,
            launcher=launcher,
            with_reports=False,
        )
    return failures


def handles_of(launcher: Any) -> list[Any]:
    """From now on, the list of the jobs that the launcher submits."""
    handles: list[Any] = []
    submit = launcher.submit

    def watched() -> None:
        jobs = list(launcher.started)
        submit()
        handles.extend(job.handle for job in jobs)

    launcher.submit = watched
    return handles


def test_a_preempted_job_saves_is_queued_again_and_has_the_metrics_of_a_local_run(
    undisturbed: Path, tmp_path: Path
) -> None:
    """submitit's local executor sends the signal that Slurm sends before a time limit or at a preemption."""
    configs = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs
    first, second = configs
    launcher = launcher_of()
    handles = handles_of(launcher)
    preempted_at: list[int] = []

    def preempt_one() -> None:
        wait_for(lambda: RunFolder(second).evaluations(), seconds=120)
        preempted_at.append(RunFolder(second).evaluations()[-1]["step"])
        os.kill(task_of(handles[1]), signal.SIGUSR2)

    threading.Thread(target=preempt_one, daemon=True).start()
    assert failures_of(launcher, configs, tmp_path) == {}
    assert len(handles) == 2, "submitit started the second job again, not the bench"
    assert metrics_below(tmp_path) == metrics_below(undisturbed)
    assert len(RunFolder(first).environment()["sessions"]) == 1
    sessions = RunFolder(second).environment()["sessions"]
    assert len(sessions) == 2
    assert preempted_at[0] <= sessions[0]["to_step"] < LONG, "saved at the signal, not at the checkpoint before"


def task_of(handle: Any) -> int:
    """The process of the job, below submitit's controller."""
    children = Path(f"/proc/{handle.job_id}/task/{handle.job_id}/children").read_text().split()
    return int(children[0])


def test_the_run_of_a_job_that_is_killed_is_submitted_again_and_has_the_metrics_of_a_local_run(
    undisturbed: Path, tmp_path: Path
) -> None:
    path, config = next(iter(bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs.items()))
    launcher = launcher_of()
    handles = handles_of(launcher)

    def kill() -> None:
        wait_for(lambda: steps_done(path, config) >= 50, seconds=120)
        training, task = int((path / ".lock").read_text()), task_of(handles[0])
        os.kill(task, signal.SIGKILL)
        os.kill(training, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    assert failures_of(launcher, {path: config}, tmp_path) == {}
    assert len(handles) == 2
    name = str((path / "metrics.jsonl").relative_to(tmp_path))
    assert metrics_below(tmp_path)[name] == metrics_below(undisturbed)[name]
    assert [session["to_step"] for session in RunFolder(path).environment()["sessions"]][-1] == LONG


def test_ctrl_c_saves_the_runs_of_the_jobs_and_ends_them(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = arguments_for(out, iterations=LONG, settings=SELDOM_SAVED)
    configs = bench_in(out, iterations=LONG, settings=SELDOM_SAVED).configs
    with start(
        "bench", RECIPE, OTHER, *arguments, "--launcher", "slurm", "--launcher-option", "cluster=local"
    ) as process:
        # One job may start some seconds after the other.
        wait_for(lambda: any(RunFolder(path).evaluations() for path in configs), seconds=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "stopped; run the same command again to continue" in " ".join(errors.split())

    def are_free() -> bool:
        try:
            for path in configs:
                path.mkdir(parents=True, exist_ok=True)
                with locked(path):
                    pass
        except InUse:
            return False
        return True

    wait_for(are_free)
    assert any(0 < steps_done(path, config) < LONG for path, config in configs.items())
    run_all(configs, ignore_progress, with_reports=False)
    assert metrics_below(out) == metrics_below(undisturbed)


def test_a_run_that_fails_in_a_job_has_the_error_of_a_local_run(tmp_path: Path) -> None:
    config = configure(recipe=RECIPE, iterations=6, settings=[*SELDOM_SAVED, "train.lr=1e15"])
    (error,) = failures_of(launcher_of(), {tmp_path / "run": config}, tmp_path).values()
    assert type(error).__name__ == "Diverged"


@pytest.fixture
def sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for the commands of Slurm that keeps what it was asked for."""
    commands = tmp_path / "commands"
    commands.mkdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    script = f'#!/bin/sh\nn=$(ls {kept} | wc -l)\ncp "$1" {kept}/$n.sh\necho "Submitted batch job 10$n"\n'
    for name in ("sbatch", "srun", "scancel", "sacct", "scontrol"):
        (commands / name).write_text(script if name == "sbatch" else "#!/bin/sh\n")
        (commands / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    return kept


def submitted(kept: Path, folder: Path, *options: str, devices: tuple[str, ...], asked: int | None = None) -> list[str]:
    """What sbatch gets for one run per device."""
    configs = [configure(recipe=RECIPE, settings=[f"engine.device={device}"]) for device in devices]
    launcher: Any = make_launcher("slurm", options)
    folder.mkdir()
    with launcher.opened(folder):
        launcher.num_at_once(configs, asked, None)
        jobs = [launcher.start(config, folder / str(i), None, True) for i, config in enumerate(configs)]
        launcher.submit()
        assert all(job.handle is not None for job in jobs)
    return [file.read_text() for file in sorted(kept.iterdir())]


def test_slurm_gets_one_array_job_with_requeue_per_number_of_gpus(sbatch: Path, tmp_path: Path) -> None:
    scripts = submitted(
        sbatch, tmp_path / "out", "timeout_min=60", "slurm_partition=long", devices=("cpu", "cuda", "cpu"), asked=2
    )
    on_cpu, on_gpu = scripts
    assert re.search(r"#SBATCH --array=0-1%2\n", on_cpu)
    for script in scripts:
        for line in ("--time=60", "--partition=long", "--open-mode=append", "--signal=USR2@"):
            assert f"#SBATCH {line}" in script
    assert re.search(r"#SBATCH --gpus-per-node=1\n", on_gpu)
    assert not re.search(r"#SBATCH --gpus-per-node=[1-9]", on_cpu)


def test_a_run_with_an_automatic_device_must_say_whether_it_needs_a_gpu(sbatch: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="add --launcher-option gpus_per_node=1 or gpus_per_node=0"):
        submitted(sbatch, tmp_path / "out", devices=("auto",))
    (script,) = submitted(sbatch, tmp_path / "with", "gpus_per_node=1", devices=("auto",))
    assert "#SBATCH --gpus-per-node=1\n" in script


def test_a_time_limit_of_the_bench_is_refused_with_the_option_that_limits_a_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--minutes is not for --launcher slurm.* timeout_min=60"):
        bench_in(tmp_path).run(ignore_progress, minutes=1, launcher=launcher_of())
    assert not any(tmp_path.iterdir()), "nothing is written"


def test_a_machine_without_slurm_is_an_error_with_a_remedy() -> None:
    if shutil.which("sbatch") is not None:
        pytest.skip("this machine has Slurm")
    with pytest.raises(ValueError, match=r"there is no sbatch on this machine; use a login node .* --launcher local"):
        make_launcher("slurm")


@pytest.mark.parametrize("option", ["partition_name=gpu", "nonsense=1", "timeout_min=long", "cluster=moon"])
def test_an_option_that_submitit_does_not_know_is_refused_before_the_first_step(option: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"submitit refuses an option|cluster=moon: choose slurm"):
        bench_in(tmp_path).run(ignore_progress, launcher=launcher_of(option))
    assert not (tmp_path / "runs").exists()
