"""docs/extending.md as written: its files are loaded, its table lines added, its tests, scripts and commands run."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from mnar import cli
from mnar.config import RunConfig
from mnar.datasets import DATASETS
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.models import MODELS
from mnar.recipes import configure
from mnar.recipes.defaults import DATASET_DEFAULTS
from mnar.report import write_run_report
from mnar.run import evaluate_run, new_run, resume_run
from mnar.run.folder import RunFolder
from mnar.training.metrics import METRICS
from mnar.training.trainer import Interrupted
from tests.guidances import test_contract as guidance_contract
from tests.guidances import test_hooks as hooks
from tests.learners import test_contract as learner_contract
from tests.models import test_models as networks
from tests.recipes import test_configure as configuring
from tests.support.equality import assert_same_run
from tests.support.watching import Watching
from tests.training import test_metrics as scoring

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"(?:^\*\*`(?P<path>[^`\n]+)`\*\*\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
# The table in each file that the page changes, and the entry that the page adds to it.
TABLES: dict[str, tuple[str, dict[str, Any], str]] = {
    "src/mnar/guidances/__init__.py": ("GUIDANCES", GUIDANCES, "debiaspl"),
    "src/mnar/learners/__init__.py": ("LEARNERS", LEARNERS, "uda"),
    "src/mnar/datasets/__init__.py": ("DATASETS", DATASETS, "wine"),
    "src/mnar/recipes/defaults.py": ("DATASET_DEFAULTS", DATASET_DEFAULTS, "wine"),
    "src/mnar/models/__init__.py": ("MODELS", MODELS, "residual_mlp"),
    "src/mnar/training/metrics.py": ("METRICS", METRICS, "worst_class_recall"),
    "tests/models/test_models.py": ("SMALL_INPUTS", networks.SMALL_INPUTS, "residual_mlp"),
    "tests/training/test_metrics.py": ("EXPECTED", scoring.EXPECTED, "worst_class_recall"),
}
SMALL = ("engine.device=cpu", "train.eval_every=5", "train.batch_labeled=16", "train.batch_unlabeled=32")


class Block(NamedTuple):
    path: str | None  # the file that the block is, or changes
    language: str
    code: str

    @property
    def module(self) -> str:
        assert self.path is not None
        return ".".join(Path(self.path).with_suffix("").parts).removeprefix("src.")


BLOCKS = [Block(*match.group("path", "language", "code")) for match in BLOCK.finditer(PAGE.read_text())]
FILES = [block for block in BLOCKS if block.path and block.language == "python"]
SOURCES = [block for block in FILES if str(block.path).startswith("src/")]
TESTS = [block for block in FILES if str(block.path).startswith("tests/")]
CHANGES = [block for block in BLOCKS if block.language == "diff"]
SCRIPTS = [block for block in BLOCKS if block.language == "python" and not block.path]
COMMANDS = [shlex.split(line) for block in BLOCKS if block.language == "sh" for line in block.code.splitlines()]


def changed(text: str, diff: str) -> str:
    """Apply a diff without line numbers: the unchanged lines of every part must occur once, one after another."""
    for part in re.split(r"^@@\n", diff, flags=re.M):
        lines = part.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line.startswith(" "))
        after = "".join(f"{line[1:]}\n" for line in lines)
        assert text.count(before) == 1, f"the file does not contain these lines once:\n{before}"
        text = text.replace(before, after)
    return text


def write(block: Block, folder: Path) -> Path:
    path = folder / str(block.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.code)
    return path


def load(block: Block, folder: Path) -> ModuleType:
    """Import a file of the page under the name that the file has in the package."""
    path = write(block, folder)
    spec = importlib.util.spec_from_file_location(block.module, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The new parts by name, in the tables as long as the tests of this file run."""
    folder, found = tmp_path_factory.mktemp("page"), dict[str, Any]()
    with pytest.MonkeyPatch.context() as patch:
        for block in SOURCES:
            patch.setitem(sys.modules, block.module, load(block, folder))
        for block in CHANGES:
            name, table, entry = TABLES[str(block.path)]
            path, module = ROOT / str(block.path), ModuleType(f"changed_{block.module}")
            module.__file__ = str(path)
            patch.setitem(sys.modules, module.__name__, module)  # a NamedTuple looks its module up
            exec(changed(path.read_text(), block.code), vars(module))
            new = {key: part for key, part in getattr(module, name).items() if key not in table}
            assert new.keys() == {entry}, f"{block.path} of the page adds other entries"
            patch.setitem(table, entry, new[entry])
        for block in SOURCES:
            found |= {name: part for name, part in vars(sys.modules[block.module]).items() if callable(part)}
        yield found


def test_the_page_changes_every_table_once_and_its_files_are_new() -> None:
    assert sorted(str(block.path) for block in CHANGES) == sorted(TABLES)
    assert {str(block.path).split("/")[1] for block in TESTS} == {"guidances", "learners", "datasets"}
    assert not [block.path for block in FILES if (ROOT / str(block.path)).exists()], "files that exist already"


def test_the_files_of_the_page_are_formatted_and_pass_the_linter(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for block in FILES:
        write(block, tmp_path)
    for command in (["format", "--check"], ["check"]):
        options = ["--no-cache", "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


# ---- the tests that the page shows, and the tests that a part gets for free


Check = Callable[..., None]


def takes(check: Check, *names: str) -> bool:
    return tuple(inspect.signature(check).parameters) == names


def checks_of(module: ModuleType) -> list[Check]:
    return [check for name, check in vars(module).items() if name.startswith("test_")]


def calls_of(check: Check) -> list[dict[str, Any]]:
    """The arguments that `pytest.mark.parametrize` gives to a test, one dictionary per call."""
    choices = []
    for mark in getattr(check, "pytestmark", []):
        if mark.name == "parametrize":
            names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
            values = mark.args[1] if len(names) > 1 else [(value,) for value in mark.args[1]]
            choices.append([dict(zip(names, each, strict=True)) for each in values])
    return [{name: value for part in parts for name, value in part.items()} for parts in itertools.product(*choices)]


def free_checks(module: ModuleType, like: str, new: str) -> list[Any]:
    """The calls of this module's tests that are about the part `like`, with the part `new` in its place."""
    return [
        pytest.param(
            check,
            {name: new if value == like else value for name, value in call.items()},
            id=f"{check.__name__}-{new}",
        )
        for check in checks_of(module)
        for call in calls_of(check)
        if like in call.values() and inspect.signature(check).parameters.keys() == call.keys()
    ]


@pytest.mark.parametrize("block", TESTS, ids=lambda block: str(block.path))
def test_the_tests_of_the_page_pass(block: Block, tmp_path: Path) -> None:
    checks = checks_of(load(block, tmp_path))
    assert checks
    for check in checks:
        for call in calls_of(check):
            check(**call)


@pytest.mark.parametrize(
    ("check", "call"),
    [
        *free_checks(guidance_contract, like="prg", new="debiaspl"),
        *free_checks(hooks, like="prg", new="debiaspl"),
        *free_checks(hooks, like="fixmatch", new="uda"),
        *free_checks(networks, like="encoder_mlp", new="residual_mlp"),
        *free_checks(configuring, like="npz", new="wine"),
        *free_checks(scoring, like="accuracy", new="worst_class_recall"),
    ],
)
def test_a_part_passes_the_tests_that_it_gets_for_free(check: Check, call: dict[str, Any]) -> None:
    check(**call)


@pytest.mark.parametrize("check", [check for check in checks_of(guidance_contract) if takes(check, "guidance")])
def test_the_guidance_keeps_the_contract_of_guidances(check: Check) -> None:
    check(GUIDANCES["debiaspl"](guidance_contract.make_task()))


@pytest.mark.parametrize(
    "check", [check for check in checks_of(learner_contract) if takes(check, "learner_name", "guidance_name")]
)
def test_guidance_and_learner_keep_the_contract_of_learners(check: Check) -> None:
    for pair in (("uda", "none"), ("uda", "cadr"), ("uda", "debiaspl"), ("fixmatch", "debiaspl")):
        assert learner_contract.serves(*pair)
        check(*pair)


# ---- runs


RUNS = {
    "debiaspl": {"dataset": "digits", "guidance": "debiaspl"},
    "uda": {"dataset": "digits", "learner": "uda"},
    "uda+debiaspl": {"dataset": "digits", "learner": "uda", "guidance": "debiaspl"},
    "wine": {"dataset": "wine"},
    "residual_mlp": {"dataset": "wine", "settings": ["model.name=residual_mlp", "model.width=8"]},
}


def short_run(settings: Sequence[str] = (), **chosen: str) -> RunConfig:
    small = [*SMALL, *(["model.width=4"] if chosen["dataset"] == "digits" else [])]
    return configure(**chosen, iterations=12, settings=[*small, *settings])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_the_new_part_by_name_resumes_bit_for_bit_and_records_the_new_metric(
    name: str, tmp_path: Path
) -> None:
    config = short_run(**RUNS[name])
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "run", Watching(signal_at=5))
    resume_run(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    line = RunFolder(tmp_path / "run").evaluations()[-1]
    assert line["test"]["worst_class_recall"] == min(line["test"]["recall"])
    if "debiaspl" in name:
        assert sum(line["guidance"]["predicted_share"]) == pytest.approx(1)
        assert 0 < line["train"]["guidance/smallest_share"] < 0.1
    if "uda" in name:
        assert line["train"].keys() >= {"loss/labeled", "loss/unlabeled", "mask_rate"}
        assert "accepted" in line["pseudo"]


def test_the_report_shows_the_new_metric_and_the_estimates_of_the_new_guidance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnar.report.html.svg", lambda figure: b"")  # writing the figures takes seconds
    new_run(short_run(dataset="digits", guidance="debiaspl"), tmp_path / "run", on_finished=write_run_report)
    report = (tmp_path / "run/report.html").read_text()
    assert "Recall of the worst class" in report
    assert "Estimate of the guidance: predicted share" in report


def test_a_run_takes_the_new_data_set_as_an_object(parts: dict[str, Any], tmp_path: Path) -> None:
    config = short_run(dataset="digits_tabular", learner="pseudo_label")
    new_run(config, tmp_path / "run", data=parts["wine"]())
    assert RunFolder(tmp_path / "run").split()["class_names"] == ["class_0", "class_1", "class_2"]


# ---- scripts and commands


def test_the_scripts_of_the_page_run(
    parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_module, names = ModuleType("my_parts"), dict[str, Any]()
    vars(own_module).update(parts)
    monkeypatch.setitem(sys.modules, "my_parts", own_module)
    for block in SCRIPTS:
        exec(block.code, names)
    assert "'worst_class_recall': " in capsys.readouterr().out


@pytest.mark.usefixtures("without_report")
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        if command[:3] == ["python", "-m", "pytest"]:
            paths = list(itertools.takewhile(lambda word: word != "-k", command[3:]))
            assert all((ROOT / path).exists() or path in {block.path for block in TESTS} for path in paths)
            continue
        few = ["--iterations", "10", "--set", "engine.device=cpu"] if command[1] == "train" else []
        monkeypatch.setattr(sys, "argv", [*command, *few])
        code: Any = None
        try:
            cli.main()
        except SystemExit as leaving:
            code = leaving.code
        output = capsys.readouterr()
        assert code in (0, None), f"{shlex.join(command)}: {output.err}"
    assert "recall of the worst class" in output.out, "the last command is `mnar eval`"
    assert {path.name for path in (tmp_path / "runs").iterdir()} >= {"debiaspl", "uda", "wine", "residual_mlp"}
    assert evaluate_run(tmp_path / "runs/wine")["worst_class_recall"] >= 0
