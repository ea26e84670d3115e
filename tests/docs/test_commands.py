"""The commands and the Python code that the README, the quickstart and the tutorials show do run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets
import torch
import typer
from threadpoolctl import threadpool_limits

from mnar import MNARClassifier, cli
from mnar.bench import choose
from mnar.recipes import configure
from tests.docs.commands import NOT_RUN, in_small, why_not, write_user_files
from tests.docs.pages import EXECUTED, Block, all_pages, blocks, commands

# Pages whose data are the digits of scikit-learn.
FEW_ROWS = (
    "docs/tutorials/images.md",
    "docs/tutorials/table.md",
    "docs/tutorials/label_next.md",
    "docs/features.md",
)
# The commands of an earlier commit, and commands that use parts which the reader writes first (test_extending.py).
NOT_CHECKED = ("docs/log.md", "docs/results.md", "CHANGELOG.md", "docs/extending.md")
Run = Callable[..., None]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `mnar` with these arguments in this process; a new process takes seconds to start."""

    def run(arguments: list[str], where: str) -> None:
        monkeypatch.setattr(sys, "argv", ["mnar", *arguments])
        try:
            cli.main()
            code: Any = 0
        except SystemExit as leaving:
            code = leaving.code
        output = capsys.readouterr()
        assert code in (0, None), f"{where}: `mnar {' '.join(arguments)}` failed:\n{output.out}\n{output.err}"

    return run


@pytest.mark.parametrize("page", EXECUTED)
@pytest.mark.usefixtures("here", "without_report")
def test_the_commands_and_the_code_of_a_page_run_from_top_to_bottom(
    page: str, run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    write_user_files(folder, home)
    monkeypatch.chdir(folder)
    for option, small in {"iterations": 4, "minutes": 0.01}.items():
        monkeypatch.setitem(MNARClassifier.__init__.__kwdefaults__, option, small)
    if page in FEW_ROWS:
        make_digits_few(monkeypatch)
    # What the code on a page takes for granted, besides what the blocks before it define.
    names: dict[str, Any] = {"device": "cpu", "logits_weak": torch.randn(448, 10), "index": torch.arange(448)}
    with threadpool_limits(1):  # many threads on busy cores make scikit-learn ten times slower
        for block in blocks(page, "sh", "python"):
            where = f"{page}, line {block.line}"
            if block.language == "python":
                exec(compile(block.text, where, "exec"), names)
                continue
            for words in commands(block):
                if why_not(words) is None:
                    run_command(in_small(words, home), where)


def make_digits_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the digits, so that estimates take a second."""
    bunch = sklearn.datasets.load_digits()
    few = type(bunch)(
        data=bunch.data[::3], target=bunch.target[::3], images=bunch.images[::3], feature_names=bunch.feature_names
    )

    def load_digits(*, return_X_y: bool = False) -> Any:
        return (few.data, few.target) if return_X_y else few

    monkeypatch.setattr(sklearn.datasets, "load_digits", load_digits)


def test_a_command_that_nobody_has_classified_is_an_error(tmp_path: Path) -> None:
    for words in (["mnar", "fly"], ["docker", "run", "mnar"], ["mnar", "bench", "--resume", "runs/g20"]):
        assert why_not(words) is None
        with pytest.raises(ValueError, match="is a command that the tests do not know"):
            in_small(words, tmp_path)


def test_every_command_that_is_not_run_is_shown_somewhere_and_has_a_reason() -> None:
    shown = {" ".join(words) for page in EXECUTED for block in blocks(page, "sh") for words in commands(block)}
    assert set(NOT_RUN) <= shown, "remove commands that no page shows any more"
    assert all(NOT_RUN.values())


@pytest.mark.parametrize("page", [page for page in all_pages() if page not in NOT_CHECKED])
def test_every_command_on_every_page_has_options_and_names_that_exist(page: str) -> None:
    group: Any = typer.main.get_command(cli.app)
    for block in blocks(page, "sh"):
        for words in commands(block):
            if words[:1] == ["mnar"] and len(words) > 1 and words[1] in group.commands:
                check_names(group.commands[words[1]], words, block, page)


def check_names(command: Any, words: list[str], block: Block, page: str) -> None:
    try:
        given = command.make_context(words[1], words[2:]).params
        if words[1] == "bench":
            choose(given["cells"] or ["digits"])
        if words[1] == "train" and given["source"] is None and given["resume"] is None:
            chosen = {name: given[name] for name in ("dataset", "protocol", "learner", "recipe", "iterations", "seed")}
            guidance = given["guidance"] if "$" not in (given["guidance"] or "") else None
            configure(**chosen, guidance=guidance, settings=given["settings"] or ())
    except Exception as error:  # the parser of Typer has errors of its own
        pytest.fail(f"{page}, line {block.line}: `{' '.join(words)}` is wrong: {error}")
