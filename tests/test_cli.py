"""The command line as its users meet it: what it prints, where, and with which exit code."""

from __future__ import annotations

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
from typing import NamedTuple

import pytest
import torch

from mnar import checkpoint, cli, side_by_side
from mnar import demo as mnar_demo
from mnar import run as mnar_run
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.recipes import RECIPES
from mnar.report import read_metrics

COMMANDS = ("demo", "train", "eval", "report", "list")
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

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["mnar", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        return Outcome(code, *capsys.readouterr())

    return run


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
    assert [line["step"] for line in read_metrics(tmp_path / "runs/one")] == [10, 20]
    assert "data:image/svg+xml" in (tmp_path / "runs/one/report.html").read_text()

    evaluated = mnar("eval", "runs/one")
    assert evaluated.code == 0, evaluated.errors
    accuracy = read_metrics(tmp_path / "runs/one")[-1]["test"]["accuracy"]
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
        assert "--set guidance.alpha=2 would make it another run" in other.errors


def test_list_shows_every_part_with_its_options(mnar: Mnar) -> None:
    listed = mnar("list")
    assert listed.code == 0
    for name in (*LEARNERS, *GUIDANCES, *RECIPES):
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
    assert "94.04 ± 0.18" in listed.output
    guidances = mnar("list", "guidances")
    assert "prg_last" in guidances.output
    assert "--set learner.OPTION=VALUE" not in guidances.output


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
        ("train --learner vime", r"vime is for tables, and digits has images; choose --learner from \[.*'fixmatch'"),
        ("train --guidance prq", r"unknown guidance 'prq'; choose from \[.*'none', 'prg', 'prg_last', 'simpro'\]"),
        ("train --learner simmatch --guidance none+prq", r"unknown guidance 'prq'; choose from \[.*'prg'"),
        ("train --learner ups --iterations 3", r"not even a step for each of 4 .*--set learner\.generations=2"),
        ("train --dataset svhn", r"unknown dataset 'svhn'; choose from \[.*'cifar10'.*'digits'"),
        ("train --protocol fair", r"unknown protocol 'fair'; choose from \['balanced', 'cadr', 'darp', 'own'\]"),
        ("train --recipe table1/cifar10", r"unknown recipe 'table1/cifar10'; nearest: \['table1/cifar10"),
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
        ("train --dataset cifar10 --data nowhere", r"data set 'cifar10' is not in /.*/nowhere: .*--data"),
        ("train --dataset npz", "--data"),
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
        ("list animals", r"nothing called 'animals' to list; choose from \['datasets'"),
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
        printed = len(read_metrics(tmp_path / "run"))
        wait_for(lambda: len(read_metrics(tmp_path / "run")) > printed + 3)
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.returncode == 130
    stopped = re.match(r"stopped at step (\d+) of 100000; saved\. Go on with: mnar train --resume run\n", errors)
    assert stopped, errors
    assert checkpoint.load(tmp_path / "run/state.pt")[0]["steps_done"] == int(stopped[1])


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
        return sum(len(read_metrics(run)) for run in tmp_path.glob("demo/*-seed1"))

    def stop_at_next_evaluation(stop: Callable[[], None], already: int, begun: set[Path]) -> None:
        wait_for(lambda: evaluations() > already)
        begun.update(config.parent for config in tmp_path.glob("demo/*/config.yaml"))
        stop()

    for stop in (stop_as_kill_does, stop_as_ctrl_c_does):
        begun = set[Path]()
        with monkeypatch.context() as patch:
            patch.setattr(side_by_side, "_num_cores", lambda: 1)  # one run at a time, and others that wait
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
