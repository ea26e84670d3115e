"""The command line as its users meet it: what it prints, where, and with which exit code."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from mnar import cli
from mnar.bench import demo as mnar_demo
from mnar.bench import parallel
from mnar.datasets.user_files import PartlyLabeled, read_data
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.own_data import train
from mnar.recipes import RECIPES, TITLES
from mnar.run import checkpoint
from mnar.run import runner as mnar_run
from mnar.run.folder import RunFolder
from tests.support.own_data_files import NAMES, TABLE_COUNTS, write_images, write_table

COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback]
TINY = [
    *("--set", "engine.device=cpu"),
    *("--set", "model.width=4"),
    *("--set", "train.batch_labeled=16"),
    *("--set", "train.batch_unlabeled=32"),
    *("--set", "train.eval_every=10"),
]


class Outcome(NamedTuple):
    code: int
    output: str
    errors: str


Mnar = Callable[..., Outcome]


@pytest.fixture
def mnar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mnar:
    """`mnar` and its arguments, in this process: a new one takes seconds to start."""

    return lambda *arguments: run_here(capsys, monkeypatch, *arguments)


def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Outcome:
    monkeypatch.setattr(sys, "argv", ["mnar", *map(str, arguments)])
    capsys.readouterr()
    try:
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    return Outcome(code, *capsys.readouterr())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command writes without being told where, it writes here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def plain(text: str) -> str:
    """Without colours and frames, and with single spaces."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


def test_train_then_eval_then_report_on_digits(mnar: Mnar, tmp_path: Path) -> None:
    trained = mnar("train", "--iterations", 20, "--out", "runs/one", *TINY)
    assert trained.code == 0, trained.errors
    assert "fixmatch + prg on digits, seed 1: 20 steps" in trained.output
    assert re.search(r"step 20/20 +test \d", trained.output)
    assert "median of the last 2 evaluations" in trained.output
    assert [line["step"] for line in RunFolder(tmp_path / "runs/one").evaluations()] == [10, 20]
    assert "data:image/svg+xml" in (tmp_path / "runs/one/report.html").read_text()

    evaluated = mnar("eval", "runs/one")
    assert evaluated.code == 0, evaluated.errors
    accuracy = RunFolder(tmp_path / "runs/one").evaluations()[-1]["test"]["accuracy"]
    assert f"accuracy {accuracy:.2%}" in evaluated.output
    assert len(re.findall(r"^│ \d ", evaluated.output, re.MULTILINE)) == 10, "a row for each class"

    reported = mnar("report", "runs/one", "--out", "new/folder/one.html")
    assert reported.code == 0, reported.errors
    assert "Report: new/folder/one.html" in reported.output
    assert "data:image/svg+xml" in (tmp_path / "new/folder/one.html").read_text()

    again = mnar("train", "--out", "runs/one", *TINY)
    assert again.code == 1
    assert "mnar train --resume runs/one" in again.errors

    resumed = mnar("train", "--resume", "runs/one", "--set", "engine.compile=false")
    assert resumed.code == 0, resumed.errors
    assert "20 steps, from step 20" in resumed.output


def test_engine_settings_reach_eval_and_resume_and_others_are_refused(mnar: Mnar, finished_run: Path) -> None:
    for command in (("eval", finished_run), ("train", "--resume", finished_run)):
        unknown = mnar(*command, "--set", "engine.device=abacus")
        assert unknown.code == 1
        assert "unknown engine.device 'abacus'" in unknown.errors
        other = mnar(*command, "--set", "guidance.alpha=2")
        assert other.code == 1
        assert "--set guidance.alpha=2 would change the run" in other.errors


def test_list_shows_every_part_with_its_options(mnar: Mnar) -> None:
    listed = mnar("list")
    assert listed.code == 0
    for name in (*LEARNERS, *GUIDANCES, *TITLES):
        assert f"  {name} " in listed.output
    assert "alpha=1.0" in listed.output
    for section, option in (
        ("train", "weight_decay=0.0005"),
        ("engine", "precision='auto'"),
        ("augment", "padding_mode='zero'"),
        ("split", "include_labeled=True"),
    ):
        assert option in listed.output
        alone = mnar("list", section).output
        assert f"--set {section}.OPTION=VALUE" in alone
        assert option in alone
        assert "alpha" not in alone
    assert not any(name in listed.output for name in RECIPES), "hundreds of lines, asked for on their own"
    guidances = mnar("list", "guidances")
    assert "prg_last" in guidances.output
    assert "--set learner.OPTION=VALUE" not in guidances.output


def test_list_recipes_has_all_of_them_or_those_that_a_name_or_pattern_chooses(mnar: Mnar) -> None:
    recipes = mnar("list", "recipes").output
    assert all(f"  {name} " in recipes for name in RECIPES)
    assert "94.04 ± 0.18" in recipes
    some = mnar("list", "recipes", "table1/*g20/fixmatch").output
    shown = [name for name in RECIPES if f"  {name} " in some]
    assert shown == [name for name in RECIPES if name.startswith("table1/") and "-g20/fixmatch" in name]
    guidances = mnar("list", "guidances", "prg").output
    assert [name for name in GUIDANCES if f"  {name} " in guidances] == ["prg", "prg_last"]


def test_list_says_whose_a_guidance_is_and_which_learners_it_can_be_chosen_with(mnar: Mnar) -> None:
    lines = mnar("list", "guidances").output.splitlines()
    about = {line.split()[0]: below.strip() for line, below in pairwise(lines) if below.startswith(" " * 6)}
    assert set(about) == set(GUIDANCES)
    assert about["prg_last"] == "Duan et al., ICCV 2023 · for every learner"
    assert about["cadr"] == "Hu et al., ICLR 2022 · for pseudo_label, fixmatch, flexmatch, comatch, simmatch"
    assert "mixmatch" in about["crest_plus"]
    assert "simmatch" not in about["crest_plus"]


def test_list_learners_shows_paper_kinds_views_and_default_guidance(mnar: Mnar) -> None:
    lines = mnar("list", "learners").output.splitlines()
    about = {
        name: next(after for line, after in pairwise(lines) if line.startswith(f"  {name} ")).strip()
        for name in LEARNERS
    }
    assert about["supervised"].endswith("images and tables · unlabelled views: none · guidance by default: none")
    assert about["fixmatch"] == (
        "Sohn et al., NeurIPS 2020 · images · unlabelled views: weak, strong · guidance by default: none"
    )
    assert about["simmatch"] == (
        "Zheng et al., CVPR 2022 · images · unlabelled views: weak, strong · guidance by default: "
        "distribution_alignment (target uniform, window 32, update before)"
    )
    for name, learner in LEARNERS.items():
        assert about[name].startswith(f"{learner.paper} · {' and '.join(learner.suits)} · unlabelled views: ")


@pytest.mark.usefixtures("without_report")
def test_a_run_without_a_folder_given_is_named_after_its_learner_and_chain(mnar: Mnar, tmp_path: Path) -> None:
    for guidance, named in (("prg", "distribution_alignment+prg"), ("none", "none")):
        outcome = mnar("train", "--learner", "simmatch", "--guidance", guidance, "--iterations", 2, "--seed", 3, *TINY)
        assert outcome.code == 0, outcome.errors
        assert f"simmatch + {named} on digits, seed 3: 2 steps" in outcome.output
        assert (tmp_path / f"runs/digits-cadr-simmatch-{named}-seed3/model.safetensors").exists()


@pytest.mark.usefixtures("without_report")
def test_tensorboard_writes_event_files_in_the_run_folder_and_only_when_asked(mnar: Mnar, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    outcome = mnar("train", "--iterations", 10, "--out", "run", "--tensorboard", *TINY)
    assert outcome.code == 0, outcome.errors
    assert re.search(r"step 10/10 +test \d", outcome.output), "and the terminal shows what it always does"
    (events,) = (tmp_path / "run/tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents")
    resumed = mnar("train", "--resume", "run", "--tensorboard")
    assert resumed.code == 0, resumed.errors
    mnar("train", "--iterations", 10, "--out", "plain", *TINY)
    assert not (tmp_path / "plain/tensorboard").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(mnar: Mnar, command: str) -> None:
    shown = mnar(command, "--help")
    assert shown.code == 0
    assert f"Example: mnar {command}" in plain(shown.output)


def test_help_lists_every_command_and_version_prints_it(mnar: Mnar) -> None:
    shown = plain(mnar("--help").output)
    for command in COMMANDS:
        assert f" {command} " in shown
    version = mnar("--version")
    assert (version.code, version.output) == (0, "mnar 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --learner fixmatsch", r"unknown learner 'fixmatsch'; choose from \[.*'fixmatch'.*'supervised'"),
        ("train --learner fixmatch+prg", r"unknown learner 'fixmatch\+prg'; choose from \[.*'fixmatch'"),
        ("train --learner vime", r"vime is for tables, but digits has images; choose --learner from \[.*'fixmatch'"),
        ("train --guidance prq", r"unknown guidance 'prq'; choose from \[.*'none', 'prg', .*'tracking'\]"),
        ("train --learner simmatch --guidance none+prq", r"unknown guidance 'prq'; choose from \[.*'prg'"),
        ("train --learner ups --iterations 3", r"less than one step for each of 4 .*--set learner\.generations=2"),
        ("train --dataset svhn", r"unknown dataset 'svhn'; choose from \[.*'cifar10'.*'digits'"),
        (
            "train --protocol fair",
            r"unknown protocol 'fair'; choose from \['as_labeled', 'balanced', 'cadr', 'darp', 'own'\]",
        ),
        ("train --recipe table1/cifar10", r"no recipe is called 'table1/cifar10'; nearest: \['table1/cifar10"),
        ("train --set guidance.beta=3", r"unknown option of guidance prg: 'beta'; choose from \['alpha',"),
        ("train --set alpha=3", r"SECTION\.OPTION=VALUE, e\.g\. guidance\.alpha=3"),
        ("train --set optimizer.lr=3", r"unknown section 'optimizer'.*choose from \["),
        ("train --set guidance.alpha=[3", "not YAML"),
        ("train --set guidance.alpha=much", r"guidance prg\.alpha is 'much'; expected a number"),
        ("train --protocol own", r"protocol own needs the option num_labels; .*--set protocol\.num_labels=VALUE"),
        ("train --set protocol.gamma=0", "gamma"),
        ("train --set protocol.gamma=-1", "gamma"),
        ("train --set protocol.gamma=5000", "class 0 was asked for 5000 labelled samples and holds"),
        ("train --set train.batch_unlabeled=5000", r"there are 1297 unlabelled samples .*choose at most 1297"),
        ("train --iterations 0", r"train\.iterations is 0; it must be at least 1"),
        ("train --seed -1", "seed is -1; choose one from 0"),
        (
            "train --dataset cifar10 --data nowhere",
            r"data set 'cifar10' is not in /.*/nowhere \(there is no such folder\): .*--data",
        ),
        ("train --dataset npz", "--data"),
        ("train --dataset own_data", "data set 'own_data' is a folder or a file of yours; name it: `mnar train DATA`"),
        ("train --learner supervised --guidance prg", "supervised makes no pseudo-labels to guide; .*--guidance none"),
        (
            "train --set augment.padding=8 --set augment.padding_mode=reflect",
            "reflect padding of 8 pixels needs larger",
        ),
        ("train --resume nothing", r"nothing is not a run folder: it has no config\.yaml"),
        ("train --resume nothing --seed 3", "leave out --seed"),
        ("train --resume nothing --seed 0", "leave out --seed"),
        ("eval nothing", "nothing is not a run folder"),
        ("report nothing", "no run folder at nothing"),
        ("report nothing --out .", r"--out \. is a folder; name the file to write, e\.g\. --out report\.html"),
        ("list animals", r"nothing called 'animals' to list; choose from \['datasets'"),
        ("train --iterations 30 --set train.iterations=50", "leave one of them out"),
        (
            "train --guidance none --set guidance.alpha=3",
            "unknown option of guidance none: 'alpha'; this part has no options",
        ),
        (
            "train --dataset cifar10",
            r"was looked for in the folder data, since --data names no other \(there is no such",
        ),
        ("list recipes tabel1", r"no recipe is called 'tabel1'; nearest: \['table1'"),
        ("list guidances grp", r"none of the guidances begins with 'grp'; choose from \['none'"),
        ("train --learner [/red]", r"unknown learner '\[/red\]'"),
        ("train --learner [fix]match", r"unknown learner '\[fix\]match'"),
    ],
)
def test_what_a_user_gets_wrong_is_one_error_with_its_remedy_and_no_traceback(
    mnar: Mnar, tmp_path: Path, arguments: str, message: str
) -> None:
    outcome = mnar(*arguments.split())
    assert outcome.code == 1
    assert re.search(message, outcome.errors.replace("\n", " "))
    assert outcome.errors.startswith("error: ")
    assert "Traceback" not in outcome.errors
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_what_the_system_refuses_is_named_with_a_remedy(mnar: Mnar, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    assert (
        mnar("bench", "digits", "--out", "file").errors == "error: file: File exists; it is no folder; choose another\n"
    )

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("mnar.run.checkpoint.write_atomically", full)
    outcome = mnar("train", "--iterations", 3, "--out", "run", *TINY)
    assert outcome.code == 1
    assert "run/config.yaml: No space left on device; free some space, then repeat the command" in outcome.errors


@pytest.mark.parametrize("arguments", ["trian", "train --lerner fixmatch", "train --iterations many", "eval"])
def test_what_the_parser_refuses_is_a_usage_error(mnar: Mnar, arguments: str) -> None:
    outcome = mnar(*arguments.split())
    assert outcome.code == 2
    assert "Usage: mnar" in plain(outcome.errors)


def test_a_run_that_diverges_exits_with_what_to_try(mnar: Mnar) -> None:
    settings = ("--set", "train.lr=1e15", "--set", "train.log_every=1", "--set", "train.save_every=1")
    outcome = mnar("train", "--iterations", 20, "--out", "run", *TINY, *settings)
    assert outcome.code == 1
    assert re.search(r"not a number .*--set train\.lr=0\.01", outcome.errors)


def test_a_folder_whose_name_looks_like_markup_is_printed_as_it_is(mnar: Mnar, finished_run: Path) -> None:
    folder = Path(shutil.copytree(finished_run, "[bold]run"))
    evaluated = mnar("eval", folder)
    assert evaluated.code == 0, evaluated.errors
    assert "[bold]run" in evaluated.output


@pytest.mark.parametrize("bug", [KeyError("recall"), IndexError("list index out of range"), AssertionError()])
def test_a_bug_is_not_taken_for_what_a_user_got_wrong(
    mnar: Mnar, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    monkeypatch.setattr(mnar_run, "evaluate_run", failing_with(bug))
    with pytest.raises(type(bug)):
        mnar("eval", "run")


def test_a_full_gpu_is_one_error_with_its_remedy(mnar: Mnar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnar_run, "evaluate_run", failing_with(torch.OutOfMemoryError("tried to allocate 2 GiB")))
    outcome = mnar("eval", "run")
    assert outcome.code == 1
    assert re.match(r"error: .*memory is full \(tried to allocate 2 GiB\); .*train\.batch_unlabeled", outcome.errors)


def failing_with(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


# ---- data of one's own

OWN = [
    "--iterations",
    8,
    "--set",
    "engine.device=cpu",
    "--set",
    "train.batch_unlabeled=8",
    "--set",
    "train.eval_every=4",
]
OWN_TABLE = ["--label", "kind", *OWN, "--set", "model.hidden=[8]"]
OWN_IMAGES = [*OWN, "--set", "model.name=small_cnn", "--set", "model.width=4"]


def test_train_and_resume_and_eval_on_a_table_of_ones_own(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    trained = mnar("train", "animals.csv", *OWN_TABLE, "--out", "run")
    assert trained.code == 0, trained.errors
    for said in (
        "pseudo_label + cadr on own, seed 1: 8 steps",
        "scored on 21 labels held out, which have the labels' class mix and not the pool's",
        "now training the labels-only baseline, to compare",
        "supervised + none on own, seed 1: 8 steps",
        "predicted labels: run/predictions.csv",
    ):
        assert said in trained.output
    (verdict,) = re.findall("^balanced accuracy .*$", trained.output, re.MULTILINE)
    predictions = (tmp_path / "run/predictions.csv").read_bytes()
    assert len(predictions.split()) == 1 + 2 * sum(TABLE_COUNTS[1]), "a header, then 'line 7,cat,0.5'"
    assert "data:image/svg+xml" in (tmp_path / "run/report.html").read_text()

    (tmp_path / "run/predictions.csv").unlink()
    resumed = mnar("train", "--resume", "run")
    assert resumed.code == 0, resumed.errors
    assert "8 steps, from step 8" in resumed.output
    assert "supervised" not in resumed.output, "that is done"
    assert verdict in resumed.output
    assert (tmp_path / "run/predictions.csv").read_bytes() == predictions

    evaluated = mnar("eval", "run")
    assert evaluated.code == 0, evaluated.errors
    assert re.findall(r"^│ (\w+) ", evaluated.output, re.MULTILINE) == [*NAMES]


@pytest.mark.usefixtures("without_report")
def test_train_on_a_folder_of_images_of_ones_own_names_the_run_after_it(mnar: Mnar, tmp_path: Path) -> None:
    write_images(tmp_path / "animals")
    trained = mnar("train", "animals", *OWN_IMAGES, "--size", 6)
    assert trained.code == 0, trained.errors
    assert "fixmatch + prg_last on own, seed 1: 8 steps" in trained.output
    assert re.search("balanced accuracy .*: there are too few to hold some out and tell whether", trained.output)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "animals-fixmatch-prg_last-seed1"
    assert {path.name for path in (run / "supervised").iterdir()} >= {"config.yaml", "model.safetensors"}
    assert re.fullmatch(r"(\d{3}\.png,(ant|bee|cat),[01]\.\d{4}\r?\n){14}", predictions_below_the_header(run))


def predictions_below_the_header(run: Path) -> str:
    header, _, rest = (run / "predictions.csv").read_text().partition("\n")
    assert header.strip() == "sample,label,confidence"
    return rest


@pytest.mark.usefixtures("without_report")
def test_a_run_on_ones_own_data_goes_on_with_data_that_have_moved(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "write_predictions", failing_with(OSError("no space left")))
        assert mnar("train", "animals.csv", *OWN_TABLE, "--out", "run").code == 1
    (tmp_path / "animals.csv").rename(tmp_path / "beasts.csv")
    moved = mnar("train", "--resume", "run", "--data", "beasts.csv")
    assert moved.code == 0, moved.errors
    assert (tmp_path / "run/predictions.csv").exists()


@pytest.mark.usefixtures("without_report")
def test_engine_settings_reach_all_that_comes_after_a_resumed_run_on_ones_own_data(
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
@pytest.mark.parametrize("by_name", [False, True])
def test_data_of_ones_own_are_read_once_in_a_run_and_once_when_it_goes_on_and_either_ends_with_a_verdict(
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
def test_the_learner_named_as_the_remedy_trains_where_every_row_has_a_label(mnar: Mnar) -> None:
    outcome = mnar("train", "everybody.csv", *OWN_TABLE, "--learner", "supervised")
    assert outcome.code == 0, outcome.errors


def test_inspect_says_what_it_writes_of_a_table_and_of_features(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "animals.csv")
    looked = mnar("inspect", "animals.csv", "--label", "kind", "--ignore", "length", "--unlabeled", "cat")
    assert looked.code == 0, looked.errors
    assert "150 rows, 105 with a label and 45 without; 2 classes" in looked.output
    assert "Full results: inspect.json" in looked.output
    written = json.loads((tmp_path / "inspect.json").read_text())
    assert [(found["name"], found["num_labels"]) for found in written["classes"]] == [("ant", 60), ("bee", 45)]
    assert re.search(f"--learner {written['recommendation']['learner']} ", plain(looked.output))

    write_images(tmp_path / "animals")
    np.save("features.npy", np.random.default_rng(0).normal(size=(36, 2)))
    looked = mnar("inspect", "animals", "--features", "features.npy", "--out", "new/look.json", "--size", 6)
    assert looked.code == 0, looked.errors
    assert json.loads((tmp_path / "new/look.json").read_text())["kind"] == "features"


@pytest.fixture
def sources(tmp_path: Path) -> None:
    """Data of one's own that something is the matter with, and some that nothing is."""
    whole = write_table(tmp_path / "animals.csv").read_text()
    (tmp_path / "nobody.csv").write_text(re.sub("(ant|bee|cat)\n", "\n", whole))
    (tmp_path / "one.csv").write_text(re.sub("(bee|cat)\n", "\n", whole))
    (tmp_path / "everybody.csv").write_text(re.sub(",\n", ",cat\n", whole))
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
        ("train nobody.csv --label kind", "nobody.csv, .*no row has a label; fill in some of each class"),
        ("inspect nobody.csv --label kind", "nobody.csv, .*no row has a label; fill in some of each class"),
        ("train one.csv --label kind", "one.csv, .*every label is 'ant', .*; label some rows of another class"),
        (
            "train everybody.csv --label kind --learner pseudo_label",
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
def test_what_is_wrong_with_data_of_ones_own_is_one_line_with_its_remedy_and_nothing_is_written(
    mnar: Mnar, tmp_path: Path, arguments: str, message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    outcome = mnar(*arguments.split())
    assert outcome.code == 1
    assert re.fullmatch(f"error: .*{message}.*\n", outcome.errors)
    assert sorted(tmp_path.rglob("*")) == before


def start(*arguments: str) -> subprocess.Popen[str]:
    """`mnar` and its arguments in a process of its own."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "mnar", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for(what: Callable[[], object], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def test_a_run_whose_reader_left_goes_on_and_sigterm_saves_it_and_names_the_command_that_resumes(
    tmp_path: Path,
) -> None:
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


def test_ctrl_c_is_answered_with_a_word_and_its_exit_code(mnar: Mnar, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped_while_looking(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "inspect_files", stopped_while_looking)
    outcome = mnar("inspect", "animals.csv")
    assert (outcome.code, outcome.errors) == (130, "stopped\n")


def stop_as_kill_does() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop_as_ctrl_c_does() -> None:
    for process in (os.getpid(), *(worker.pid for worker in active_children())):
        assert process is not None
        os.kill(process, signal.SIGINT)


def test_demo_stopped_twice_goes_on_and_compares_four_methods_and_says_what_prg_changed(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("demo", "--seeds", "1", "--iterations", "80", "--out", "demo")

    def evaluations() -> int:
        return sum(len(RunFolder(run).evaluations()) for run in tmp_path.glob("demo/*-seed1"))

    def stop_at_next_evaluation(stop: Callable[[], None], already: int, begun: set[Path]) -> None:
        wait_for(lambda: evaluations() > already)
        begun.update(config.parent for config in tmp_path.glob("demo/*/config.yaml"))
        stop()

    for stop in (stop_as_kill_does, stop_as_ctrl_c_does):
        begun = set[Path]()
        with monkeypatch.context() as patch:
            patch.setattr(parallel, "num_cores", lambda: 1)  # one run at a time, and others that wait
            patch.setattr(mnar_demo, "METHODS", mnar_demo.METHODS[1:])  # the first is over in no time
            threading.Thread(target=stop_at_next_evaluation, args=(stop, evaluations(), begun)).start()
            stopped = mnar(*command)
        assert stopped.code == 130, stopped.errors
        assert stopped.errors == "stopped; go on with the same command\n"
        assert active_children() == []
        finished = {model.parent for model in tmp_path.glob("demo/*/model.safetensors")}
        assert finished <= begun, "none was begun and finished after the stop"

    outcome = mnar(*command)
    assert outcome.code == 0, outcome.errors
    for method in ("supervised", "fixmatch", "fixmatch + prg", "fixmatch + prg_last"):
        assert re.search(rf"^│ {re.escape(method)} +│", outcome.output, re.MULTILINE), method
    assert "Against fixmatch, fixmatch + prg" in outcome.output
    assert "data:image/svg+xml" in (tmp_path / "demo/report.html").read_text()
    assert len([path for path in (tmp_path / "demo").iterdir() if path.is_dir()]) == 4

    again = mnar("demo", "--seeds", 1, "--iterations", 9, "--out", "demo")
    assert again.code == 1
    assert re.search(r"holds a run with other settings \(train\.iterations: 80 and 9\)", again.errors)
