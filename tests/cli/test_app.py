"""The command line as a whole: help, exit codes and error messages."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mnar import __version__, cli
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.protocols import PROTOCOLS
from tests.support.command import TINY, Mnar, failing_with

COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback]
SOURCE_FILES = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}


def plain(text: str) -> str:
    """The text without colours and frames, with single spaces."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example(mnar: Mnar, command: str) -> None:
    shown = mnar(command, "--help")
    assert shown.code == 0
    assert f"Example: mnar {command}" in plain(shown.output)


def test_the_help_lists_every_command_and_version_prints_the_version(mnar: Mnar) -> None:
    shown = plain(mnar("--help").output)
    for command in COMMANDS:
        assert f" {command} " in shown
    version = mnar("--version")
    assert (version.code, version.output) == (0, f"mnar {__version__}\n")


def test_every_file_of_a_command_is_registered() -> None:
    modules = {command.callback.__module__ for command in cli.app.registered_commands if command.callback}
    assert {module.removeprefix("mnar.cli.") for module in modules} == SOURCE_FILES - {"__init__", "app", "options"}


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
        ("train --protocol fair", rf"unknown protocol 'fair'; choose from {re.escape(str(sorted(PROTOCOLS)))}"),
        ("train --recipe table1/cifar10", r"no recipe is called 'table1/cifar10'; nearest: \['table1/cifar10"),
        ("train --set guidance.beta=3", r"unknown option of guidance prg: 'beta'; choose from \['alpha',"),
        ("train --set alpha=3", r"SECTION\.OPTION=VALUE, e\.g\. guidance\.alpha=3"),
        ("train --set optimizer.lr=3", r"unknown section 'optimizer'.*choose from \["),
        ("train --set guidance.alpha=[3", "not YAML"),
        ("train --set guidance.alpha=much", r"guidance\.alpha \(prg\) is 'much'; expected a number"),
        ("train --protocol own", r"protocol own needs the option num_labels; .*--set protocol\.num_labels=VALUE"),
        ("train --set protocol.gamma=0", "gamma"),
        ("train --set protocol.gamma=-1", "gamma"),
        ("train --set protocol.gamma=5000", "class 0 was asked for 5000 labelled samples and holds"),
        ("train --set train.batch_unlabeled=5000", r"there are 1297 unlabelled samples .*choose at most 1297"),
        ("train --iterations 0", r"train\.iterations is 0; expected a whole number from 1"),
        ("train --seed -1", "seed is -1; expected a whole number from 0"),
        (
            "train --dataset cifar10 --data nowhere",
            r"data set 'cifar10' is not in /.*/nowhere \(there is no such folder\): .*--data",
        ),
        ("train --dataset npz", "--data"),
        (
            "train --dataset own_data",
            "data set 'own_data' needs the path of your data; .* `mnar train DATA`",
        ),
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
        ("report nothing --out .", r"\. is a folder; name the file to write, e\.g\. report\.html"),
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
def test_a_mistake_of_the_user_is_one_error_with_a_remedy_and_without_a_traceback(
    mnar: Mnar, tmp_path: Path, arguments: str, message: str
) -> None:
    outcome = mnar(*arguments.split())
    assert outcome.code == 1
    assert re.search(message, outcome.errors.replace("\n", " "))
    assert outcome.errors.startswith("error: ")
    assert "Traceback" not in outcome.errors
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_an_unknown_learner_or_guidance_is_answered_with_all_names(mnar: Mnar) -> None:
    for section, table in (("learner", LEARNERS), ("guidance", GUIDANCES)):
        assert f"choose from {sorted(table)}" in mnar("train", f"--{section}", "unknown").errors


def test_a_bench_under_torchrun_is_refused_because_it_starts_its_own_processes(
    mnar: Mnar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    outcome = mnar("bench", "digits/cadr-g20/fixmatch", "--out", str(tmp_path / "bench"))
    assert outcome.code == 1
    assert outcome.errors == "error: mnar bench starts its own processes; start the command without torchrun\n"
    assert not (tmp_path / "bench").exists()


def test_a_bench_in_a_single_process_of_a_launcher_is_not_refused(
    mnar: Mnar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some clusters set these variables for every job."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "no recipe is called 'unknown'" in mnar("bench", "unknown", "--out", tmp_path / "bench").errors


def test_an_error_of_the_operating_system_is_printed_with_a_remedy(mnar: Mnar, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    outcome = mnar("bench", "digits", "--out", "file")
    assert outcome.errors == "error: file: File exists; the path is not a folder; choose another path\n"

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("mnar.run.folder.write_atomically", full)
    outcome = mnar("train", "--iterations", 3, "--out", "run", *TINY)
    assert outcome.code == 1
    assert "run/config.yaml: No space left on device; free some space, then repeat the command" in outcome.errors


@pytest.mark.parametrize("arguments", ["trian", "train --lerner fixmatch", "train --iterations many", "eval"])
def test_an_argument_that_the_parser_refuses_is_a_usage_error(mnar: Mnar, arguments: str) -> None:
    outcome = mnar(*arguments.split())
    assert outcome.code == 2
    assert "Usage: mnar" in plain(outcome.errors)


@pytest.mark.parametrize("bug", [KeyError("recall"), IndexError("list index out of range"), AssertionError()])
def test_a_bug_is_not_printed_as_a_mistake_of_the_user(
    mnar: Mnar, monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    monkeypatch.setattr("mnar.run.evaluate_run", failing_with(bug))
    with pytest.raises(type(bug)):
        mnar("eval", "run")


def test_a_full_gpu_memory_is_one_error_with_a_remedy(mnar: Mnar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnar.run.evaluate_run", failing_with(torch.OutOfMemoryError("tried to allocate 2 GiB")))
    outcome = mnar("eval", "run")
    assert outcome.code == 1
    assert re.match(r"error: .*memory is full \(tried to allocate 2 GiB\); .*train\.batch_unlabeled", outcome.errors)


@pytest.mark.parametrize("make", [lambda: torch.empty(2**50), lambda: np.empty(2**50)])
def test_a_full_memory_is_one_error_with_a_remedy(
    mnar: Mnar, monkeypatch: pytest.MonkeyPatch, make: Callable[[], object]
) -> None:
    monkeypatch.setattr("mnar.run.evaluate_run", lambda *arguments, **options: make())
    outcome = mnar("eval", "run")
    assert outcome.code == 1
    assert re.match(
        r"error: the memory does not suffice \(.*\d.*\); choose smaller batches, .*train\.batch_unlabeled",
        outcome.errors,
    )
    assert outcome.errors.count("\n") == 1


def test_ctrl_c_prints_a_message_and_exits_with_code_130(mnar: Mnar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnar.own_data.train.inspect_files", failing_with(KeyboardInterrupt()))
    outcome = mnar("inspect", "animals.csv")
    assert (outcome.code, outcome.errors) == (130, "stopped\n")
