"""`mnar train` on a benchmark data set."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from mnar.run import checkpoint
from mnar.run.folder import RunFolder
from mnar.training.headline import BEST, FINAL, headline, headline_name
from mnar.training.metrics import headline_metrics
from tests.support.command import TINY, Mnar, start, wait_for


def test_a_run_prints_its_evaluations_and_its_headline_and_writes_a_report(mnar: Mnar, tmp_path: Path) -> None:
    trained = mnar("train", "--iterations", 20, "--out", "runs/one", *TINY)
    assert trained.code == 0, trained.errors
    assert "fixmatch + prg on digits, seed 1: 20 steps" in trained.output
    lines = RunFolder(tmp_path / "runs/one").evaluations()
    assert [line["step"] for line in lines] == [10, 20]
    for line in lines:
        first, *others = [f"{metric.title} {line['test'][metric.name]:.2%}" for metric in headline_metrics()]
        assert f"step {line['step']}/20  {'  '.join([f'test {first}', *others])}  " in trained.output
    figures = headline(lines)
    medians = [f"{metric.title} {figures[headline_name(metric.name)]:.2%}" for metric in headline_metrics()]
    assert trained.output.splitlines()[-2:] == [
        f"{', '.join(medians)} (medians of the last 2 evaluations); accuracy {figures[FINAL]:.2%} (final), "
        f"{figures[BEST]:.2%} (best on test)",
        "runs/one",
    ]
    assert "data:image/svg+xml" in (tmp_path / "runs/one/report.html").read_text()


@pytest.mark.usefixtures("without_report")
def test_a_finished_run_is_neither_overwritten_nor_trained_again(mnar: Mnar) -> None:
    assert mnar("train", "--iterations", 20, "--out", "runs/one", *TINY).code == 0
    again = mnar("train", "--out", "runs/one", *TINY)
    assert again.code == 1
    assert "mnar train --resume runs/one" in again.errors
    resumed = mnar("train", "--resume", "runs/one", "--set", "engine.compile=false")
    assert resumed.code == 0, resumed.errors
    assert "20 steps, from step 20" in resumed.output


@pytest.mark.usefixtures("without_report")
def test_a_run_folder_is_named_after_data_protocol_learner_guidances_and_seed(mnar: Mnar, tmp_path: Path) -> None:
    for guidance, name in (("prg", "distribution_alignment+prg"), ("none", "none")):
        outcome = mnar("train", "--learner", "simmatch", "--guidance", guidance, "--iterations", 2, "--seed", 3, *TINY)
        assert outcome.code == 0, outcome.errors
        assert f"simmatch + {name} on digits, seed 3: 2 steps" in outcome.output
        assert (tmp_path / f"runs/digits-cadr-simmatch-{name}-seed3/model.safetensors").exists()


@pytest.mark.usefixtures("without_report")
def test_tensorboard_files_are_written_into_the_run_folder_only_with_the_option(mnar: Mnar, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    outcome = mnar("train", "--iterations", 10, "--out", "run", "--tensorboard", *TINY)
    assert outcome.code == 0, outcome.errors
    assert re.search(r"step 10/10 +test accuracy \d", outcome.output), "the terminal shows the evaluations, too"
    (events,) = (tmp_path / "run/tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents")
    resumed = mnar("train", "--resume", "run", "--tensorboard")
    assert resumed.code == 0, resumed.errors
    mnar("train", "--iterations", 10, "--out", "plain", *TINY)
    assert not (tmp_path / "plain/tensorboard").exists()


def test_a_run_that_diverges_exits_with_a_remedy(mnar: Mnar) -> None:
    settings = ("--set", "train.lr=1e15", "--set", "train.log_every=1", "--set", "train.save_every=1")
    outcome = mnar("train", "--iterations", 20, "--out", "run", *TINY, *settings)
    assert outcome.code == 1
    assert re.search(r"not a finite number .*--set train\.lr=0\.01", outcome.errors)


@pytest.mark.slow
def test_a_run_continues_after_its_output_is_closed_and_sigterm_saves_it(tmp_path: Path) -> None:
    with start("train", "--iterations", "100000", "--out", "run", *TINY) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("step 10"):
                break
        process.stdout.close()  # as `head` does
        printed = len(RunFolder(tmp_path / "run").evaluations())
        wait_for(lambda: len(RunFolder(tmp_path / "run").evaluations()) > printed + 3)
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.returncode == 130
    stopped = re.match(r"stopped at step (\d+) of 100000; saved\. Continue with: mnar train --resume run\n", errors)
    assert stopped, errors
    assert checkpoint.load(tmp_path / "run/state.pt")[0]["steps_done"] == int(stopped[1])
