"""The reference is complete: every public name, every option, every command and every entry of the metrics."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mnar
import mnar.run
from mnar.config import SECTIONS, TABLES, RunConfig
from tests.docs.pages import ROOT, all_pages, text_of

EXTENSION = ROOT / "docs" / "_ext"
PARTS = ("guidances", "learners", "protocols", "datasets", "models", "augment")
PACKAGES = (*PARTS, "training", "recipes", "run", "report", "bench", "sklearn_api")
GENERATED = re.compile(r"<!-- generated: (.+?) -->")


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the Sphinx extension."""
    monkeypatch.setattr(sys, "path", [str(EXTENSION), *sys.path])
    return importlib.import_module


def requests() -> Iterator[str]:
    """The generated parts that the pages ask for."""
    for page in all_pages():
        yield from GENERATED.findall(text_of(page))


def test_every_package_with_public_names_has_a_part_of_the_reference() -> None:
    asked = set(requests())
    assert [package for package in PACKAGES if f"names of mnar.{package}" not in asked] == []
    assert {"command line", "configuration", "metrics", "index of mnar"} <= asked


def test_every_name_of_mnar_is_documented_in_its_package(extension: Callable[[str], ModuleType]) -> None:
    public_names = extension("public_names")
    assert {public_names.home_of(name).rpartition(".")[2] for name in mnar.__all__} == set(mnar.__all__)


def test_the_command_line_page_has_every_option_of_every_command(extension: Callable[[str], ModuleType]) -> None:
    command_line = extension("command_line")
    text = command_line.markdown()
    for name, command in command_line.commands().items():
        assert f"## `mnar {name}`" in text
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("--"))


@pytest.mark.parametrize("section", [*TABLES, *SECTIONS])
def test_every_option_has_a_meaning(section: str, extension: Callable[[str], ModuleType]) -> None:
    configuration = extension("configuration")
    for name, make in configuration.parts(section).items():
        silent = [option for option, meaning in configuration.meanings(section, make).items() if not meaning]
        assert silent == [], f"explain these options of {section} {name} in a docstring"


@pytest.mark.parametrize(
    "text",
    [
        "Return *all* rows_ of |C|.",
        "Do this.\n\nalpha     the weight of staying\n          in the class\nlr, ema   two numbers\n",
        "FixMatch.\n\n    paper  here   meaning\n    q_b    probs  a prediction\n",
        "- one `thing`\n- another\n  that goes on",
    ],
)
def test_docstrings_become_restructuredtext_without_a_warning(
    text: str, extension: Callable[[str], ModuleType]
) -> None:
    from docutils.core import publish_doctree

    rst = extension("docstrings").to_rst(text)
    document = publish_doctree(rst, settings_overrides={"halt_level": 2, "report_level": 5})
    words = re.findall(r"\w+", document.astext())
    assert set(re.findall(r"\w+", text)) <= set(words)


@pytest.mark.usefixtures("without_report")
def test_the_page_of_the_run_folder_names_every_file_and_every_entry_of_the_metrics(
    tmp_path: Path, tiny: Callable[..., RunConfig]
) -> None:
    page = text_of("docs/reference/run_folder.md")
    recorded = {metric.name for metric in importlib.import_module("mnar.training.metrics").METRICS.values()}
    methods = {
        "early": ("train.validation=0.3",),
        "cadr": ("guidance.name=cadr",),
        "ups": ("learner.name=ups", "learner.generations=2", "train.batch_unlabeled=16"),
    }
    for name, settings in methods.items():
        mnar.run.new_run(tiny(*settings, iterations=10), tmp_path / name)
        for file in (tmp_path / name).iterdir():
            assert f"`{file.name}" in page, f"{file.name} is not explained"
        for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines():
            for entry in set(entries(json.loads(line))) - recorded:
                assert f"`{entry}`" in page, f"{entry} is not explained"


def entries(line: dict[str, Any]) -> Iterator[str]:
    for name, value in line.items():
        yield name
        if isinstance(value, dict):
            yield from value
