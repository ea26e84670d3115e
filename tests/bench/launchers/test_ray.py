"""A real Ray on this machine with two workers."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mnar.bench.launchers import make_launcher, worker
from mnar.bench.parallel import run_all, steps_done
from mnar.recipes import configure
from mnar.run.file_names import MODEL
from mnar.run.folder import RunFolder
from mnar.run.lock import locked
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

pytest.importorskip("ray", reason="needs pip install 'mnar[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.slow]


def launcher_of(*options: str) -> Any:
    return make_launcher("ray", options)


def failures_of(configs: Any, tmp_path: Path, *options: str) -> dict[Path, Exception]:
    failures: dict[Path, Exception] = {}
    launcher = launcher_of(*options)
    with launcher.opened(tmp_path):
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


def kill_worker_of(path: Path) -> int:
    """Kill the training, its fork server and the Ray worker above them, as the loss of a machine does."""
    chain = [int((path / ".lock").read_text())]
    while "ray::" not in (Path(f"/proc/{chain[-1]}/cmdline").read_text()):
        status = Path(f"/proc/{chain[-1]}/status").read_text()
        chain.append(int(status.partition("PPid:")[2].split()[0]))
        assert chain[-1] > 1, "no Ray worker above the training"
    for process in reversed(chain):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return chain[-1]


def sessions_of(path: Path) -> list[dict[str, Any]]:
    return list(RunFolder(path).environment()["sessions"])


def test_two_runs_on_two_workers_have_the_metrics_of_local_runs(
    cluster: str, undisturbed: Path, tmp_path: Path
) -> None:
    configs = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs
    assert failures_of(configs, tmp_path) == {}
    assert metrics_below(tmp_path) == metrics_below(undisturbed)
    assert {RunFolder(path).environment()["threads"] for path in configs} == {1}


def test_the_run_of_a_killed_worker_is_resumed_from_its_checkpoint_and_has_the_same_metrics(
    cluster: str, undisturbed: Path, tmp_path: Path
) -> None:
    configs = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED).configs
    first, second = configs
    killed: list[int] = []

    def kill_one() -> None:
        wait_for(lambda: steps_done(second, configs[second]) >= 50)
        killed.append(steps_done(second, configs[second]))
        assert not (second / MODEL).exists()
        kill_worker_of(second)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    assert failures_of(configs, tmp_path) == {}
    killer.join(1)
    assert killed, "the run was finished before its worker could be killed"
    assert metrics_below(tmp_path) == metrics_below(undisturbed)
    assert len(sessions_of(first)) == 1
    assert len(sessions_of(second)) == 2
    # A checkpoint is written every 50 steps, so at most 50 steps were trained twice.
    assert sessions_of(second)[0]["to_step"] >= killed[0]


def test_ctrl_c_saves_the_runs_on_the_workers_and_ends_them(cluster: str, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = arguments_for(out, iterations=LONG, settings=SELDOM_SAVED)
    options = ("--launcher", "ray", "--launcher-option", f"address={cluster}")
    configs = bench_in(out, iterations=LONG, settings=SELDOM_SAVED).configs
    with start("bench", RECIPE, OTHER, *arguments, *options) as process:
        # One worker may start some seconds after the other.
        wait_for(lambda: any(RunFolder(path).evaluations() for path in configs), seconds=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "stopped; run the same command again to continue" in " ".join(errors.split())
    assert any(0 < steps_done(path, config) < LONG for path, config in configs.items())
    for path in configs:
        path.mkdir(parents=True, exist_ok=True)
        with locked(path):
            """No process trains this run any more."""
    assert failures_of(configs, out) == {}
    assert metrics_below(out) == metrics_below(undisturbed)


def test_a_run_that_fails_on_a_worker_has_the_error_and_the_traceback_of_a_local_run(
    cluster: str, tmp_path: Path
) -> None:
    config = configure(recipe=RECIPE, iterations=6, settings=[*SELDOM_SAVED, "train.lr=1e15"])
    (error,) = failures_of({tmp_path / "run": config}, tmp_path).values()
    assert type(error).__name__ == "Diverged"
    assert error.__notes__[0].startswith("Traceback (most recent call last):\n")


def test_workers_that_do_not_share_the_folder_are_found_before_the_first_run(
    cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The workers look for a text that is not in the file."""
    mark = worker.SharedFolder.mark.__func__  # type: ignore[attr-defined]

    def mark_elsewhere(cls: Any, folder: Path) -> Any:
        marked = mark(cls, folder)
        (folder / worker.TOKEN).unlink()
        return marked

    monkeypatch.setattr(worker.SharedFolder, "mark", classmethod(mark_elsewhere))
    with pytest.raises(ValueError, match=r"does not share the folder .* on a file system that all workers share"):
        bench_in(tmp_path).run(ignore_progress, launcher=launcher_of())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "settings", "needs"),
    [
        ([], ["engine.device=cpu"], {"num_cpus": 1, "num_gpus": 0}),
        ([], ["engine.device=auto"], {"num_cpus": 1, "num_gpus": 0}),
        ([], ["engine.device=cuda"], {"num_cpus": 1, "num_gpus": 1}),
        (["num_gpus=0.5", "num_cpus=2"], ["engine.device=cuda"], {"num_cpus": 2, "num_gpus": 0.5}),
        (["memory_gb=2"], ["engine.device=cpu"], {"num_cpus": 1, "num_gpus": 0, "memory": 2**31}),
    ],
)
def test_the_resources_of_a_run_follow_from_its_device_and_from_the_options(
    options: list[str], settings: list[str], needs: dict[str, float]
) -> None:
    assert launcher_of(*options)._resources(configure(recipe=RECIPE, settings=settings)) == needs


def test_without_a_time_limit_ray_gets_all_runs_and_with_one_as_many_as_it_can_train(
    cluster: str, tmp_path: Path
) -> None:
    configs = [configure(recipe=RECIPE, settings=["engine.device=cpu"])] * 5
    launcher = launcher_of()
    with launcher.opened(tmp_path):
        assert [launcher.num_at_once(configs, asked, seconds) for asked in (None, 3) for seconds in (None, 60.0)] == [
            5,
            2,
            3,
            3,
        ]


def test_a_run_that_needs_more_than_every_node_has_is_refused_before_the_first_step(
    cluster: str, tmp_path: Path
) -> None:
    for options, settings in ((["num_cpus=3"], SELDOM_SAVED), ([], (*SELDOM_SAVED, "engine.device=cuda"))):
        with pytest.raises(ValueError, match=r"a run needs .* and no node of the Ray cluster has that much; choose"):
            bench_in(tmp_path, settings=settings).run(ignore_progress, launcher=launcher_of(*options))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "option", ["gpus=1", "num_gpus=many", "num_cpus=-1", "num_cpus=true", "num_cpus=.nan", "address=6379"]
)
def test_an_unknown_option_or_a_value_that_is_no_number_is_refused(option: str) -> None:
    with pytest.raises(
        ValueError, match=r"choose one of address, num_cpus|give a number that is not negative|write HOST:PORT"
    ):
        launcher_of(option)


def test_an_address_where_no_ray_answers_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """In a process of its own, because this process is already connected."""
    arguments = arguments_for(tmp_path / "out")
    with start("bench", RECIPE, *arguments, "--launcher", "ray", "--launcher-option", "address=127.0.0.1:1") as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    text = " ".join(errors.split())
    assert "Ray at 127.0.0.1:1 does not answer" in text
    assert "or choose --launcher local" in text
