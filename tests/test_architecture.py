"""Imports point one way, and the rules about where things happen, read off the source itself."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mnar

SOURCE = Path(mnar.__file__).parent
# Each layer imports from the layers before it and, without a cycle, from itself.
PARTS = ("guidances", "learners", "protocols", "datasets", "models", "augment")
LAYERS = (
    ("types", "distributed", "atomic_write"),
    PARTS,
    ("training",),
    ("config",),
    ("recipes",),
    ("run",),
    ("report",),
    ("own_data", "bench", "sklearn_api"),
    ("terminal",),
    ("cli",),
)
LAYER_OF = {unit: depth for depth, units in enumerate(LAYERS) for unit in units}
TABLES = {"LEARNERS", "GUIDANCES", "PROTOCOLS", "DATASETS", "MODELS", "RECIPES", "TABLES"}
# Where a part may be looked up by name: what reads configurations, the assembler, and the command that lists.
READERS_OF_TABLES = {"config", "recipes", "run.assemble", "bench", "terminal.listing"}
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
    """A folder of parts counts as one."""
    return module.split(".")[0]


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """The modules of the package that a module names in an import, at the top or within a function."""
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
    """What each module imports; a package is its __init__."""
    names = set(modules())
    return {
        name: {f"{target}.__init__" if f"{target}.__init__" in names else target for target in imported_modules(tree)}
        for name, tree in modules().items()
        if name not in ("__init__", "__main__")
    }


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    assert {unit(module) for module in graph()} == set(LAYER_OF)


@pytest.mark.parametrize("module", sorted(graph()))
def test_imports_point_to_the_same_layer_or_one_below(module: str) -> None:
    upward = [target for target in graph()[module] if LAYER_OF[unit(target)] > LAYER_OF[unit(module)]]
    assert upward == []


def test_no_module_imports_itself_through_others() -> None:
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


def test_guidances_know_no_learner() -> None:
    for module, targets in graph().items():
        if unit(module) == "guidances":
            assert {unit(target) for target in targets} <= {"types", "distributed", "guidances"}


def test_backward_is_called_in_train_only() -> None:
    callers = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    }
    assert callers == {"training.trainer"}


def test_parts_are_looked_up_by_name_where_runs_are_assembled_only() -> None:
    readers = {
        name if unit(name) in ("run", "terminal") else unit(name)
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in TABLES
    }
    assert readers <= READERS_OF_TABLES


def clocks_in(tree: ast.Module) -> Iterator[str]:
    """Where it looks at a clock that somebody can set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "datetime")
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            yield f"from {node.module}"
        elif isinstance(node, ast.Attribute) and node.attr in FILE_TIMES:
            yield node.attr
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS_THAT_CAN_BE_SET:
            yield ast.unparse(node)


def test_nobody_looks_at_a_clock_that_can_be_set_except_for_the_times_of_cached_files() -> None:
    found = {name: clocks for name, tree in modules().items() if (clocks := set(clocks_in(tree)))}
    assert found.pop("datasets.user_files.image_cache") <= FILE_TIMES, "which files are new, not how long anything took"
    assert found == {}


def test_import_mnar_loads_no_heavy_library_and_takes_under_two_seconds_beyond_torch() -> None:
    script = (
        "import json, sys, time, torch; before, began = set(sys.modules), time.perf_counter(); import mnar; "
        "print(json.dumps([time.perf_counter() - began, sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=SOURCE.parent, timeout=60
    )
    seconds, loaded = json.loads(done.stdout)
    assert "mnar.guidances.prg" in loaded
    heavy = {"matplotlib", "sklearn", "pandas", "jinja2", "typer", "rich", "scipy", "PIL"}
    assert heavy.isdisjoint(name.split(".")[0] for name in loaded)
    assert seconds <= 2
