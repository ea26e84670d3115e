"""Rules about the source code: the direction of imports, and which module may do what."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import mnar

SOURCE = Path(mnar.__file__).parent
# Each layer imports from the layers before it and, without a cycle, from itself.
PARTS = ("guidances", "learners", "protocols", "datasets", "models", "augment")
LAYERS = (
    ("types", "distributed", "atomic_write", "option_values"),
    PARTS,
    ("training",),
    ("config",),
    ("recipes",),
    ("run",),
    ("report",),
    ("own_data", "bench", "sklearn_api"),
    ("trained",),
    ("terminal",),
    ("cli",),
)
LAYER_OF = {unit: depth for depth, units in enumerate(LAYERS) for unit in units}
TABLES = {"LEARNERS", "GUIDANCES", "PROTOCOLS", "DATASETS", "MODELS", "RECIPES", "TABLES"}
MOST_ENTRIES = 24  # files and folders of src/mnar, so that a newcomer can overlook the package
# Only these modules look up a part by its name: they read configurations, assemble runs, or list parts.
READERS_OF_TABLES = {"config", "recipes", "run.assemble", "run.pretraining", "bench", "own_data", "terminal.listing"}
CLOCKS_THAT_CAN_BE_SET = {
    f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "mktime", "asctime")
}
FILE_TIMES = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "st_atime", "st_atime_ns", "getmtime", "getctime"}


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module, by its dotted name within the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    names = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths]
    return {name: ast.parse(path.read_text()) for name, path in zip(names, paths, strict=True)}


def unit(module: str) -> str:
    """The file or folder directly below src/mnar that contains the module."""
    return module.split(".")[0]


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """The modules of the package that a module imports, at the top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("mnar.") for alias in node.names if alias.name.startswith("mnar."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            if node.module == "mnar":
                yield from (alias.name for alias in node.names if alias.name != "__version__")
            elif node.module and node.module.startswith("mnar."):
                package = node.module.removeprefix("mnar.")
                submodules = [f"{package}.{alias.name}" for alias in node.names]
                yield from (name if name in modules() else package for name in submodules)


@cache
def graph() -> dict[str, set[str]]:
    """The imports of each module; a package stands for its __init__."""
    names = set(modules())
    return {
        name: {f"{target}.__init__" if f"{target}.__init__" in names else target for target in imported_modules(tree)}
        for name, tree in modules().items()
        if name not in ("__init__", "__main__")
    }


def test_every_module_has_a_layer_and_every_layer_has_a_module() -> None:
    assert {unit(module) for module in graph()} == set(LAYER_OF)


def test_the_package_has_few_entries() -> None:
    entries = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert {"__init__.py", "__main__.py", "py.typed"} <= entries
    assert len(entries) <= MOST_ENTRIES, f"put new modules into one of the folders: {sorted(entries)}"


def test_imports_inside_functions_and_type_checking_blocks_are_seen() -> None:
    source = """
from typing import TYPE_CHECKING
import mnar.config
if TYPE_CHECKING:
    from mnar.run import Display
def train():
    from mnar.report import write_report
    class Late:
        from mnar.run import reader
        from mnar import types, __version__
"""
    assert {*imported_modules(ast.parse(source))} == {"config", "run", "report", "run.reader", "types"}
    assert "report.__init__" in graph()["cli.report"], "a real import inside a function"


@pytest.mark.parametrize("module", sorted(graph()))
def test_a_module_imports_from_its_own_layer_or_from_a_lower_one(module: str) -> None:
    upward = [target for target in graph()[module] if LAYER_OF[unit(target)] > LAYER_OF[unit(module)]]
    assert upward == []


def test_no_module_imports_itself_through_other_modules() -> None:
    imports = graph()
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for target in imports[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in imports:
        visit(module, ())


def test_guidances_do_not_import_learners() -> None:
    for module, targets in graph().items():
        if unit(module) == "guidances":
            others = targets - {"models.batch_norm"}  # CDMAD keeps running statistics unchanged while it measures
            assert {unit(target) for target in others} <= {"types", "distributed", "option_values", "guidances"}


def test_backward_is_called_in_the_trainer_only() -> None:
    callers = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    }
    assert callers == {"training.trainer"}


def test_only_some_modules_look_up_parts_by_name() -> None:
    readers = {
        name if unit(name) in ("run", "terminal") else unit(name)
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in TABLES
    }
    assert readers <= READERS_OF_TABLES


def clocks_in(tree: ast.Module) -> Iterator[str]:
    """The places that read the time of day, which the user or the network can change during a run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "datetime")
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            yield f"from {node.module}"
        elif isinstance(node, ast.Attribute) and node.attr in FILE_TIMES:
            yield node.attr
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS_THAT_CAN_BE_SET:
            yield ast.unparse(node)


def test_no_module_reads_the_time_of_day_except_for_the_times_of_changed_files() -> None:
    found = {name: clocks for name, tree in modules().items() if (clocks := set(clocks_in(tree)))}
    for name in ("datasets.user_files.image_cache", "trained.result_file"):
        assert found.pop(name) <= FILE_TIMES, "they show which files have changed"
    assert found == {}


class Imported(NamedTuple):
    seconds: float
    modules: list[str]  # all modules that are loaded afterwards, without those that torch loads


@pytest.fixture(scope="module")
def imported() -> dict[str, Imported]:
    """The duration and the effect of importing these modules one after another in a fresh process."""
    script = """
import importlib, json, sys, time, torch
before, results = set(sys.modules), {}
for name in ("mnar", "mnar.cli", "mnar.report"):
    began = time.perf_counter()
    importlib.import_module(name)
    results[name] = [time.perf_counter() - began, sorted(set(sys.modules) - before)]
print(json.dumps(results))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=SOURCE.parent, timeout=60
    )
    return {name: Imported(*result) for name, result in json.loads(done.stdout).items()}


def test_import_mnar_loads_no_heavy_library_and_takes_under_two_seconds_beyond_torch(
    imported: dict[str, Imported],
) -> None:
    seconds, loaded = imported["mnar"]
    assert "mnar.guidances.prg" in loaded
    heavy = {"matplotlib", "sklearn", "pandas", "jinja2", "typer", "rich", "scipy", "PIL"}
    assert heavy.isdisjoint(name.split(".")[0] for name in loaded)
    assert seconds <= 2


@pytest.mark.parametrize("module", ["mnar.cli", "mnar.report"])
def test_the_commands_and_the_report_load_heavy_libraries_only_when_they_need_them(
    module: str, imported: dict[str, Imported]
) -> None:
    assert module in imported[module].modules
    heavy = {"matplotlib", "sklearn", "pandas", "jinja2"}
    assert heavy.isdisjoint(name.split(".")[0] for name in imported[module].modules)
