"""`mnar train` on the user's own data."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnar.datasets.user_files import PartlyLabeled, read_data
from mnar.own_data import train
from tests.support.command import Mnar, as_options, failing_with
from tests.support.own_data_files import NAMES, TABLE_COUNTS, write_images, write_table

OWN = ["--iterations", 8, *as_options(("engine.device=cpu", "train.batch_unlabeled=8", "train.eval_every=4"))]
OWN_TABLE = ["--label", "kind", *OWN, *as_options(["model.hidden=[8]"])]
OWN_IMAGES = [*OWN, *as_options(["model.name=small_cnn", "model.width=4"])]


def test_a_table_is_trained_on_compared_with_the_labels_alone_resumed_and_evaluated(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    trained = mnar("train", "animals.csv", *OWN_TABLE, "--out", "run")
    assert trained.code == 0, trained.errors
    for message in (
        "pseudo_label + cadr on own_data, seed 1: 8 steps",
        "scored on 21 held-out labels; their class distribution is that of the labels",
        "now training the labels-only baseline, for comparison",
        "supervised + none on own_data, seed 1: 8 steps",
        "predicted labels: run/predictions.csv",
    ):
        assert message in trained.output
    (verdict,) = re.findall("^balanced accuracy .*$", trained.output, re.MULTILINE)
    predictions = (tmp_path / "run/predictions.csv").read_bytes()
    assert len(predictions.split()) == 1 + 2 * sum(TABLE_COUNTS[1]), "a header, then lines such as 'line 7,cat,0.5'"
    assert "data:image/svg+xml" in (tmp_path / "run/report.html").read_text()

    (tmp_path / "run/predictions.csv").unlink()
    resumed = mnar("train", "--resume", "run")
    assert resumed.code == 0, resumed.errors
    assert "8 steps, from step 8" in resumed.output
    assert "supervised" not in resumed.output, "the baseline is finished"
    assert verdict in resumed.output
    assert (tmp_path / "run/predictions.csv").read_bytes() == predictions

    evaluated = mnar("eval", "run")
    assert evaluated.code == 0, evaluated.errors
    assert re.findall(r"^│ (\w+) ", evaluated.output, re.MULTILINE) == [*NAMES]


@pytest.mark.usefixtures("without_report")
def test_a_run_on_a_folder_of_images_is_named_after_the_folder(mnar: Mnar, tmp_path: Path) -> None:
    write_images(tmp_path / "animals")
    trained = mnar("train", "animals", *OWN_IMAGES, "--size", 6)
    assert trained.code == 0, trained.errors
    assert "fixmatch + prg_last on own_data, seed 1: 8 steps" in trained.output
    assert re.search(
        "balanced accuracy .*: there are too few labels to hold some out and compare fairly", trained.output
    )
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "animals-fixmatch-prg_last-seed1"
    assert {path.name for path in (run / "supervised").iterdir()} >= {"config.yaml", "model.safetensors"}
    assert re.fullmatch(r"(\d{3}\.png,(ant|bee|cat),[01]\.\d{4}\r?\n){14}", predictions_below_the_header(run))


def predictions_below_the_header(run: Path) -> str:
    header, _, rest = (run / "predictions.csv").read_text().partition("\n")
    assert header.strip() == "sample,label,confidence"
    return rest


@pytest.mark.usefixtures("without_report")
def test_a_run_is_resumed_with_data_that_have_moved(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "write_predictions", failing_with(OSError("no space left")))
        assert mnar("train", "animals.csv", *OWN_TABLE, "--out", "run").code == 1
    (tmp_path / "animals.csv").rename(tmp_path / "beasts.csv")
    moved = mnar("train", "--resume", "run", "--data", "beasts.csv")
    assert moved.code == 0, moved.errors
    assert (tmp_path / "run/predictions.csv").exists()


@pytest.mark.usefixtures("without_report")
def test_engine_options_of_a_resumed_run_also_apply_to_baseline_and_predictions(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path / "animals.csv")
    assert mnar("train", "animals.csv", *OWN_TABLE, "--out", "run").code == 0
    config = tmp_path / "run/config.yaml"
    config.write_text(config.read_text().replace("device: cpu", "device: cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    resumed = mnar("train", "--resume", "run", "--set", "engine.device=cpu")
    assert resumed.code == 0, resumed.errors


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("by_name", [False, True], ids=["mnar train DATA", "--dataset own_data"])
def test_a_run_and_its_resumption_read_the_data_once_and_end_with_a_verdict(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    reads: list[Path] = []

    def counted(source: Path, **options: Any) -> PartlyLabeled:
        reads.append(source)
        return read_data(source, **options)

    for module in (train, sys.modules["mnar.datasets.own_data"]):
        monkeypatch.setattr(module, "read_data", counted)
    write_table(tmp_path / "animals.csv")
    as_a_data_set = (
        "--dataset",
        "own_data",
        "--data",
        "animals.csv",
        "--learner",
        "pseudo_label",
        "--guidance",
        "cadr",
    )
    named = (*as_a_data_set, "--set", "dataset.label=kind") if by_name else ("animals.csv", "--label", "kind")
    trained = mnar("train", *named, *OWN)
    assert trained.code == 0, trained.errors
    run = "runs/animals-pseudo_label-cadr-seed1"
    resumed = mnar("train", "--resume", run)
    assert resumed.code == 0, resumed.errors
    assert len(reads) == 2
    for outcome in (trained, resumed):
        assert re.search(rf"^balanced accuracy .*\npredicted labels: {run}/predictions.csv$", outcome.output, re.M)


@pytest.mark.usefixtures("without_report", "sources")
def test_the_learner_of_the_remedy_trains_on_a_table_in_which_every_row_has_a_label(mnar: Mnar) -> None:
    outcome = mnar("train", "all_labels.csv", *OWN_TABLE, "--learner", "supervised")
    assert outcome.code == 0, outcome.errors


@pytest.fixture
def sources(tmp_path: Path) -> None:
    """Tables with and without problems."""
    whole = write_table(tmp_path / "animals.csv").read_text()
    (tmp_path / "no_label.csv").write_text(re.sub("(ant|bee|cat)\n", "\n", whole))
    (tmp_path / "one_class.csv").write_text(re.sub("(bee|cat)\n", "\n", whole))
    (tmp_path / "all_labels.csv").write_text(re.sub(",\n", ",cat\n", whole))
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "short.npy", np.zeros((149, 2)))


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train animals.csv --label kind --dataset digits", "animals.csv is your own data, so --dataset cannot"),
        ("train animals.csv --protocol cadr --data x", "so --protocol, --data cannot be used; leave it out"),
        ("train animals.csv --recipe table1/x", "so --recipe cannot be used; leave it out"),
        ("train --label kind", "--label can only be used with your own data: `mnar train DATA`"),
        (
            "train --ignore a --unlabeled b --size 8 --features f",
            "--ignore, --unlabeled, --size, --features can only be used with",
        ),
        ("train animals.csv --resume run", "leave out DATA, or start a new run"),
        ("train --resume run --label kind --size 8", "leave out --label, --size, or start a new run"),
        ("train animals.csv", "which column is the label. Name it with --label: weight, length, colour, kind"),
        ("train animals.csv --label sort", "no column 'sort'; its columns are weight, length, colour, kind"),
        ("inspect animals.csv --label sort", "no column 'sort'; its columns are weight, length, colour, kind"),
        ("train animals.csv --label kind --ignore breadth", "no column 'breadth'; its columns are"),
        ("train animals.csv --label kind --features short.npy", r"short.npy has shape \(149, 2\) .* 150 rows"),
        ("inspect animals.csv --label kind --features none.npy", r"none.npy .*; write it with numpy\.save"),
        ("train no_label.csv --label kind", "no_label.csv, .*no row has a label; fill in some of each class"),
        ("inspect no_label.csv --label kind", "no_label.csv, .*no row has a label; fill in some of each class"),
        (
            "train one_class.csv --label kind",
            "one_class.csv, .*every label is 'ant', .*; label some rows of another class",
        ),
        (
            "train all_labels.csv --label kind --learner pseudo_label",
            "every sample has a label, .*; choose --learner supervised",
        ),
        ("train absent.csv", "no data at absent.csv; name a folder of images with a CSV"),
        ("inspect short.npy", "short.npy is none of .csv, .*; save it as one of these"),
        ("train empty", "empty holds no images .*; name the folder that does"),
        (
            "train animals.csv --label kind --learner fixmatch",
            "fixmatch is for images, but own_data has tables; choose",
        ),
        ("train animals.csv --label kind --set dataset.held_out=1", r"held_out is 1.*lies in \[0, 1\)"),
    ],
)
def test_a_problem_with_the_data_is_one_line_with_a_remedy_and_nothing_is_written(
    mnar: Mnar, tmp_path: Path, arguments: str, message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    outcome = mnar(*arguments.split())
    assert outcome.code == 1
    assert re.fullmatch(f"error: .*{message}.*\n", outcome.errors)
    assert sorted(tmp_path.rglob("*")) == before
