"""`torchrun -m mnar train DATA`: a network on own data in several processes."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist

from mnar.run import RunFolder
from tests.support.command import Mnar
from tests.support.own_data_files import TABLE_COUNTS, write_table
from tests.support.processes import torchrun

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")

NETWORK = ("--label", "kind", "--learner", "pseudo_label", "--guidance", "prg")
# Processes draw other masks of dropout than one process does, and a batch must be shared equally.
SETTINGS = ("--set", "model.dropout=0", "--set", "model.hidden=[16]", "--set", "train.batch_unlabeled=32")


def finished(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = job.communicate(timeout=120)
    return job.returncode, output, errors


@pytest.mark.slow
def test_two_processes_train_the_network_and_the_predictions_of_one_process(mnar: Mnar, tmp_path: Path) -> None:
    table = write_table(tmp_path / "animals.csv")
    command = ("train", table, *NETWORK, *SETTINGS, "--iterations", 60)
    assert mnar(*command, "--out", tmp_path / "one").code == 0
    code, output, errors = finished(torchrun(*command[1:], "--out", tmp_path / "two"))
    assert code == 0, errors
    assert output.count("balanced accuracy") == 1, "only process 0 prints the verdict"

    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    assert two.config().train.lr == pytest.approx(one.config().train.lr), "both suggest the same learning rate"
    assert two.environment()["sessions"][0]["processes"] == 2
    for folder in (two.path, two.path / "baseline"):
        alone = one.path / folder.relative_to(two.path)
        losses = [[line["train"]["loss"] for line in RunFolder(run).evaluations()] for run in (alone, folder)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    predicted = [list(csv.reader((run.path / "predictions.csv").open())) for run in (one, two)]
    assert len(predicted[1]) == 1 + sum(TABLE_COUNTS[1])
    assert [row[:-1] for row in predicted[1]] == [row[:-1] for row in predicted[0]]
    assert (two.path / "report.html").exists()


def test_the_portfolio_is_refused_once(tmp_path: Path) -> None:
    table = write_table(tmp_path / "animals.csv")
    code, _, errors = finished(torchrun(table, "--label", "kind", "--out", tmp_path / "run"))
    assert code != 0
    expected = "the portfolio of classifiers is trained in one process; start the command without torchrun, or name a"
    assert errors.count(expected) == 1, errors
    assert not (tmp_path / "run").exists()


def test_a_batch_that_the_processes_cannot_share_is_refused_once(tmp_path: Path) -> None:
    table = write_table(tmp_path / "animals.csv")
    odd = ("--set", "train.batch_unlabeled=33", "--iterations", 60)
    code, _, errors = finished(torchrun(table, *NETWORK, *odd, "--out", tmp_path / "run"))
    assert code != 0
    assert errors.count("33 samples per step, which 2 processes cannot share equally") == 1, errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_minutes_give_both_processes_the_same_number_of_steps(tmp_path: Path) -> None:
    table = write_table(tmp_path / "animals.csv")
    limited = ("--minutes", "0.02")
    code, _, errors = finished(torchrun(table, *NETWORK, *SETTINGS, *limited, "--out", tmp_path / "run"))
    assert code == 0, errors
    run = RunFolder(tmp_path / "run")
    assert run.evaluations()[-1]["step"] == run.config().train.iterations >= 20


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("other.csv",), "contains a run on other data"),
        (("animals.csv", "--seed", "2"), "contains another run (seed: 1 and 2)"),
        (
            ("animals.csv", "--learner", "supervised", "--guidance", "none"),
            "contains another run (learner.name: pseudo_label and supervised",
        ),
    ],
)
@pytest.mark.usefixtures("without_report")
def test_a_command_that_torchrun_starts_again_does_not_continue_another_run(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: tuple[str, ...], message: str
) -> None:
    for name in ("animals.csv", "other.csv"):
        write_table(tmp_path / name)
    options = (*NETWORK, *SETTINGS, "--set", "engine.device=cpu", "--out", "run")
    assert mnar("train", "animals.csv", *options, "--iterations", 8).code == 0
    monkeypatch.setattr("mnar.run.processes.is_restarted", lambda: True)
    refused = mnar("train", other[0], *options, *other[1:], "--iterations", 8)
    assert (refused.code, message in refused.errors) == (1, True), refused.errors
    assert "choose another --out" in refused.errors
    same = mnar("train", "animals.csv", *options, "--minutes", 0.01)
    assert (same.code, "from step 8" in same.output) == (0, True), same.errors
