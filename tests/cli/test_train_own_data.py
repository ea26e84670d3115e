"""`mnar train` on the user's own data."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from mnar.datasets.user_files import PartlyLabeled, read_data
from mnar.own_data import portfolio_run, train
from mnar.terminal.portfolio_table import PortfolioTable
from tests.support.command import Mnar, as_options, failing_with, stop_as_ctrl_c_does
from tests.support.own_data_files import NAMES, TABLE_COUNTS, write_images, write_table

OWN = ["--iterations", 8, *as_options(("engine.device=cpu", "train.batch_unlabeled=8", "train.eval_every=4"))]
OWN_TABLE = ["--label", "kind", *OWN, *as_options(["model.hidden=[8]"])]
OWN_IMAGES = [*OWN, *as_options(["model.name=small_cnn", "model.width=4"])]


def test_a_table_is_trained_on_compared_with_the_labels_alone_resumed_and_evaluated(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    trained = mnar("train", "animals.csv", *OWN_TABLE, "--out", "run")
    assert trained.code == 0, trained.errors
    for message in (
        "pseudo_label + simpro on own_data, seed 1: 8 steps",
        "scored on 21 held-out labels; their class distribution is that of the labels",
        "now training the labels-only baseline, for comparison",
        "supervised + none on own_data, seed 1: 8 steps",
        "predicted labels: run/predictions.csv",
    ):
        assert message in trained.output
    (verdict,) = re.findall("^balanced accuracy .*$", trained.output, re.MULTILINE)
    predictions = (tmp_path / "run/predictions.csv").read_bytes()
    assert len(predictions.split()) == 1 + 2 * sum(TABLE_COUNTS[1]), "a header, then lines such as '6,line 7,cat,0.5'"
    assert "Did the unlabelled samples help?" in (tmp_path / "run/report.html").read_text()
    assert "data:image/svg+xml" in (tmp_path / "run/training.html").read_text()

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
    assert "fixmatch + prg_balanced on own_data, seed 1: 8 steps" in trained.output
    assert re.search(
        "balanced accuracy .*: there are too few labels to hold some out and compare fairly", trained.output
    )
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "animals-fixmatch-prg_balanced-seed1"
    assert {path.name for path in (run / "supervised").iterdir()} >= {"config.yaml", "model.safetensors"}
    assert re.fullmatch(r"(\d+,\d{3}\.png,(ant|bee|cat),[01]\.\d{4}\r?\n){14}", predictions_below_the_header(run))


def predictions_below_the_header(run: Path) -> str:
    header, _, rest = (run / "predictions.csv").read_text().partition("\n")
    assert header.strip() == "row,sample,label,confidence"
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
        "simpro",
    )
    named = (*as_a_data_set, "--set", "dataset.label=kind") if by_name else ("animals.csv", "--label", "kind")
    trained = mnar("train", *named, *OWN)
    assert trained.code == 0, trained.errors
    run = "runs/animals-pseudo_label-simpro-seed1"
    resumed = mnar("train", "--resume", run)
    assert resumed.code == 0, resumed.errors
    assert len(reads) == 2
    for outcome in (trained, resumed):
        assert re.search(rf"^balanced accuracy .*\npredicted labels: {run}/predictions.csv$", outcome.output, re.M)


@pytest.mark.usefixtures("without_report", "sources")
def test_the_learner_of_the_remedy_trains_on_a_table_in_which_every_row_has_a_label(mnar: Mnar) -> None:
    outcome = mnar("train", "all_labels.csv", *OWN_TABLE, "--learner", "supervised")
    assert outcome.code == 0, outcome.errors


# ---- the portfolio


def test_without_options_of_a_network_a_portfolio_is_tried_reported_resumed_and_evaluated(
    mnar: Mnar, tmp_path: Path
) -> None:
    write_table(tmp_path / "animals.csv")
    trained = mnar("train", "animals.csv", "--label", "kind", "--fast")
    assert trained.code == 0, trained.errors
    run = "runs/animals-portfolio-seed1"
    lines = trained.output.splitlines()
    assert [line.split(":")[0] for line in lines if ": balanced accuracy" in line] == ["kernel", "graph"]
    choice = json.loads((tmp_path / run / "choice.json").read_text())
    assert f"chosen: {choice['reason']}" in lines
    score = choice["balanced_accuracy"]
    percent = f"{100 * score['value']:.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})"
    assert any(line.startswith(f"estimated balanced accuracy {percent} %, accuracy on the pool") for line in lines)
    assert choice["verdict"] in lines
    assert re.match("(the unlabelled samples|it cannot be told)", choice["verdict"])
    assert [f"warning: {text}" in lines for text in choice["warnings"]] == [True] * len(choice["warnings"])
    assert lines[-3:] == [f"predicted labels: {run}/predictions.csv", f"report: {run}/report.html", run]
    assert len((tmp_path / run / "predictions.csv").read_text().splitlines()) == 1 + sum(TABLE_COUNTS[1])
    page = (tmp_path / run / "report.html").read_text()
    assert "Did the unlabelled samples help?" in page
    assert all(name in page for name in ("kernel", "graph", *NAMES))

    resumed = mnar("train", "--resume", run)
    assert resumed.code == 0, resumed.errors
    assert resumed.output.splitlines()[-5:] == lines[-5:]
    evaluated = mnar("eval", run)
    assert evaluated.code == 0, evaluated.errors
    assert re.findall(r"^│ (\w+) ", evaluated.output, re.MULTILINE) == [*NAMES]
    assert "scored by cross-validation on the labels" in evaluated.output
    assert f"balanced accuracy {score['value']:.2%}" in evaluated.output


@pytest.fixture
def portfolio(mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of one member, without a report."""
    monkeypatch.setattr(portfolio_run, "write_own_data_report", lambda folder, page: None)
    write_table(tmp_path / "animals.csv")
    trained = mnar("train", "animals.csv", "--label", "kind", "--learner", "kernel", "--out", "run")
    assert trained.code == 0, trained.errors
    return tmp_path / "run"


def test_other_commands_treat_a_run_of_the_portfolio_with_a_clear_message(
    mnar: Mnar, portfolio: Path, finished_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(portfolio, tmp_path / "runs/portfolio")
    report = mnar("report", "run")
    assert report.code == 1
    assert report.errors.startswith("error: run is a run of the portfolio, whose report is run/report.html; give")
    assert not (tmp_path / "report.html").exists()
    shutil.copytree(finished_run, tmp_path / "runs/network")
    both = mnar("report", "runs")
    assert both.code == 0, both.errors
    assert "<title>fixmatch + prg</title>" in (tmp_path / "report.html").read_text()
    show = mnar("bench", "--show", "--out", "runs")
    assert show.code == 1
    assert "there is no bench in runs" in show.errors
    for command in (("eval", "run"), ("train", "--resume", "run")):
        refused = mnar(*command, "--set", "engine.device=cpu")
        assert refused.code == 1
        assert "run is a run of the portfolio, to which --set cannot be applied; leave it out" in refused.errors


def test_other_data_are_scored_by_a_run_of_the_portfolio(mnar: Mnar, portfolio: Path, tmp_path: Path) -> None:
    lines = (tmp_path / "animals.csv").read_text().splitlines()
    (tmp_path / "turned.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    (tmp_path / "species.csv").write_text("\n".join(lines).replace("kind", "species", 1) + "\n")
    times_ten = [re.sub(r"^(-?[\d.]+),", r"\1e1,", line) for line in lines]
    (tmp_path / "heavier.csv").write_text("\n".join(times_ten) + "\n")
    (tmp_path / "other.csv").write_text("\n".join(lines).replace("weight", "height", 1) + "\n")
    same = mnar("eval", "run", "--data", "animals.csv")
    assert same.code == 0, same.errors
    assert f"scored on all {sum(TABLE_COUNTS[0])} labelled samples of animals.csv" in same.output
    for options in (("turned.csv",), ("species.csv", "--label", "species")):
        again = mnar("eval", "run", "--data", *options)
        assert again.code == 0, again.errors
        assert again.output.splitlines()[-1] == same.output.splitlines()[-1]
    heavier = mnar("eval", "run", "--data", "heavier.csv")
    assert heavier.code == 0, heavier.errors
    assert heavier.output.splitlines()[-1] != same.output.splitlines()[-1]
    other = mnar("eval", "run", "--data", "other.csv")
    assert other.code == 1
    assert re.match("error: .*'weight'", other.errors)


@pytest.mark.parametrize("network", [(), ("--learner", "supervised")])
def test_a_run_folder_inside_class_folders_is_refused_because_it_would_become_a_class(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: tuple[str, ...]
) -> None:
    for name in ("ant", "bee", "unlabeled"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos")
    for options in ((".",), (tmp_path / "photos", "--out", "run"), ("--dataset", "own_data", "--data", ".")):
        refused = mnar("train", *options, *network)
        assert (refused.code, "choose a folder outside, e.g. --out ../runs/photos" in refused.errors) == (1, True)
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["ant", "bee", "unlabeled"]
    elsewhere = mnar("train", ".", *network, "--out", "../runs/photos")
    assert "holds no images" in elsewhere.errors


def test_a_run_on_the_folder_in_which_the_command_runs_is_named_after_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = portfolio_run.PortfolioConfig(".")
    assert portfolio_run.portfolio_folder(config) == Path(f"runs/{tmp_path.stem}-portfolio-seed1")


@pytest.mark.parametrize("kind", [("--fast",), ("--learner", "supervised")])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("foo=1", "unknown option of dataset own_data: 'foo'; choose from"),
        ("ignore=length", "dataset.ignore (own_data) is 'length'; expected a list of texts"),
        ("root=other.csv", "--set dataset.root cannot be applied; leave it out"),
    ],
)
def test_an_option_of_the_data_that_is_unknown_or_of_another_type_is_refused(
    mnar: Mnar, tmp_path: Path, setting: str, message: str, kind: tuple[str, ...]
) -> None:
    """The portfolio and a network refuse the same options."""
    write_table(tmp_path / "animals.csv")
    refused = mnar("train", "animals.csv", "--label", "kind", *kind, "--set", f"dataset.{setting}")
    assert (refused.code, message in refused.errors) == (1, True), refused.errors
    assert not (tmp_path / "runs").exists()


def test_an_option_of_the_data_given_with_set_is_stored_with_its_type_and_the_run_is_read_again(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio_run, "write_own_data_report", lambda folder, page: None)
    write_table(tmp_path / "animals.csv")
    settings = as_options(["dataset.ignore=[length]", "dataset.label=kind", "dataset.id=null"])
    trained = mnar("train", "animals.csv", "--learner", "kernel", *settings, "--out", "run")
    assert trained.code == 0, trained.errors
    stored = yaml.safe_load((tmp_path / "run/portfolio.yaml").read_text())
    assert stored["reading"] == {"ignore": ["length"], "label": "kind"}
    assert mnar("eval", "run").code == 0


def test_ctrl_c_prints_the_resume_command_which_continues_the_run(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio_run, "write_own_data_report", lambda folder, page: None)
    write_table(tmp_path / "animals.csv")
    real = PortfolioTable.fold_done

    def stop(display: PortfolioTable, name: str, done: int, total: int) -> None:
        real(display, name, done, total)
        if name == "graph":
            stop_as_ctrl_c_does()

    with monkeypatch.context() as patch:
        patch.setattr(PortfolioTable, "fold_done", stop)
        stopped = mnar("train", "animals.csv", "--label", "kind", "--fast", "--out", "run")
    assert stopped.code == 130
    (command,) = re.findall(
        "^stopped while trying graph; the finished members are saved. Continue with: mnar (.*)\n$", stopped.errors
    )
    resumed = mnar(*command.split())
    assert resumed.code == 0, resumed.errors
    assert (tmp_path / "run/predictions.csv").exists()


def test_a_folder_that_exists_is_refused_before_the_data_are_read(mnar: Mnar, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("")
    for options in ((), ("--learner", "pseudo_label"), ("--learner", "kernel")):
        refused = mnar("train", "absent.csv", "--out", "run", *options)
        assert refused.code == 1
        assert "absent.csv" not in refused.errors
        assert re.match("error: .*run", refused.errors)


@pytest.mark.parametrize(
    ("options", "is_network"),
    [
        ("--learner kernel", False),
        ("--set dataset.unlabeled=[cat] --learner kernel", False),
        ("--learner kernel --objective accuracy --minutes 1 --seed 3", False),
        ("--learner pseudo_label", True),
        ("--guidance prg", True),
        ("--set train.lr=0.01", True),
        ("--set dataset.held_out=0.5", True),
        ("--tensorboard", True),
    ],
)
def test_only_options_of_a_network_ask_for_one_network(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, is_network: bool
) -> None:
    started: list[str] = []

    def network(*given: object, **others: object) -> None:
        started.append("network")
        raise ValueError("stopped here")

    def portfolio(*given: object, **others: object) -> None:
        started.append("portfolio")
        raise ValueError("stopped here")

    monkeypatch.setattr(train, "configure_own_data", network)
    monkeypatch.setattr(portfolio_run, "new_portfolio_run", portfolio)
    write_table(tmp_path / "animals.csv")
    outcome = mnar("train", "animals.csv", "--label", "kind", *options.split())
    assert outcome.errors == "error: stopped here\n"
    assert started == ["network" if is_network else "portfolio"]


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
        ("train --label kind", "--label can only be used with your own data; name them: `mnar train DATA`"),
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
        ("train animals.csv --label kind --learner fixmatsch", "unknown learner 'fixmatsch'; choose from .*'kernel'"),
        (
            "train animals.csv --label kind --fast --learner fixmatch",
            "--fast chooses among several classifiers, but --learner fixmatch asks for one network; leave one of them",
        ),
        (
            "train animals.csv --label kind --objective accuracy --set train.lr=0.1",
            "--objective chooses among several classifiers, but --set train.lr=0.1 asks for one network",
        ),
        ("train animals.csv --label kind --objective recall", "unknown objective 'recall'; choose from"),
        (
            "train animals.csv --label kind --minutes 0",
            "minutes is 0.*; the time must be positive and at most .* Choose e.g.",
        ),
        ("train animals.csv --label kind --id name", "no column 'name'; its columns are weight, length, colour, kind"),
        ("train --resume run --fast --minutes 3", "leave out --fast, --minutes, or start a new run"),
        ("train --fast --objective accuracy", "--objective, --fast can only be used with your own data"),
        ("train all_labels.csv --label kind --learner graph", "'graph' does not suit these data; choose from"),
        ("train animals.csv --label kind --seed -1", "seed is -1; choose one from 0 to"),
        ("train animals.csv --label kind --iterations 0", "iterations is 0; it must be at least 1"),
        ("train empty", "empty holds no images .*; name the folder that does"),
        (
            "train animals.csv --label kind --learner fixmatch",
            "fixmatch is for images, but own_data has tables; choose",
        ),
        ("train animals.csv --label kind --set dataset.held_out=1", r"held_out .*is 1; expected a number of at"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("animals", "--fast", "--out", "animals/run"),
        ("animals", "--learner", "supervised", "--out", "animals/run"),
        ("--dataset", "own_data", "--data", "animals", "--out", "animals/run"),
        ("--dataset", "own_data", "--set", "dataset.root=animals", "--out", "animals/run"),
    ],
)
def test_a_run_folder_inside_class_folders_is_refused(mnar: Mnar, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "animals" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "animals" / name / "1.png")
    refused = mnar("train", *arguments)
    assert (refused.code, "where every folder is a class; choose a folder outside" in refused.errors) == (1, True)
    assert not (tmp_path / "animals/run").exists()


def test_the_features_of_a_network_run_are_found_from_any_folder(mnar: Mnar, tmp_path: Path) -> None:
    write_images(tmp_path / "animals")
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(36, 2)))
    options = as_options(["dataset.features=features.npy", "train.lr=0.03"])
    trained = mnar("train", "animals", "--learner", "supervised", "--iterations", "2", *options, "--out", "run")
    assert trained.code == 0, trained.errors
    stored = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["dataset"]
    assert stored["features"] == str(tmp_path / "features.npy")
