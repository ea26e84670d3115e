"""requirements.lock has the version and the hashes of every package that `make install` installs, except torch."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WITHOUT_HASH = "torch"  # a CPU build of torch has another hash than the file of the index


class Locked(NamedTuple):
    requirement: Requirement
    hashes: list[str]


def entries(file: str) -> list[Locked]:
    """Read the requirements of a file of pip, in which a backslash continues a line."""
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    parts = [line.split(" --hash=") for line in lines if not line.startswith("#")]
    return [
        Locked(Requirement(requirement.strip()), [part.strip() for part in hashes]) for requirement, *hashes in parts
    ]


def pins(file: str) -> dict[str, str]:
    """Return the version of each package that a file asks for on this machine."""
    pinned = {}
    for requirement, _ in entries(file):
        if requirement.marker is None or requirement.marker.evaluate():
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", f"{file}: {requirement} is no exact version"
            pinned[canonicalize_name(requirement.name)] = specifier.version
    return pinned


def development(requirements: Iterable[str]) -> Iterator[Requirement]:
    """Yield these requirements, with those of the extras of mnar that they name."""
    for requirement in map(Requirement, requirements):
        if requirement.name == "mnar":
            for extra in requirement.extras:
                yield from development(PYPROJECT["project"]["optional-dependencies"][extra])
        else:
            yield requirement


def is_missing(requirement: Requirement, locked: dict[str, str]) -> bool:
    name = canonicalize_name(requirement.name)
    return name != WITHOUT_HASH and not (name in locked and requirement.specifier.contains(locked[name], True))


LOCKED, PINS = pins("requirements.lock"), pins("constraints.txt")
DIRECT = [
    *development(["mnar[dev]", *PYPROJECT["project"]["dependencies"]]),
    *map(Requirement, PYPROJECT["build-system"]["requires"]),
]
OF_TORCH = [Requirement(text) for text in PYPROJECT["tool"]["uv"]["dependency-metadata"][0]["requires-dist"]]


def test_the_lock_has_a_version_that_fits_each_requirement_of_development_of_the_build_and_of_torch():
    assert [str(requirement) for requirement in [*DIRECT, *OF_TORCH] if is_missing(requirement, LOCKED)] == []


def test_each_pin_of_a_requirement_of_development_is_the_version_in_the_lock():
    names = {canonicalize_name(requirement.name) for requirement in DIRECT} - {WITHOUT_HASH}
    assert {name: LOCKED[name] for name in names & PINS.keys()} == {name: PINS[name] for name in names & PINS.keys()}
    assert {canonicalize_name(requirement.name) for requirement in development(["mnar[dev]"])} <= PINS.keys()


def test_the_lock_has_all_that_its_packages_ask_for_according_to_their_metadata():
    missing, num_checked = list[str](), 0
    for name, locked in LOCKED.items():
        try:
            is_installed = version(name) == locked
        except PackageNotFoundError:
            is_installed = False
        if is_installed:
            num_checked += 1
            asked = [Requirement(text) for text in requires(name) or ()]
            needed = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
            missing += [f"{name} asks for {one}" for one in needed if is_missing(one, LOCKED)]
    if num_checked < len(LOCKED) / 2:
        pytest.skip("this environment was not installed from the lock")
    assert missing == []


def test_the_metadata_of_torch_name_no_package_besides_cuda_that_the_list_in_pyproject_lacks():
    asked = [Requirement(text) for text in requires("torch") or ()]
    everywhere = {one.name for one in asked if not re.search("extra|platform", str(one.marker))}
    assert everywhere <= {one.name for one in OF_TORCH}


def test_each_entry_of_the_lock_has_a_sha256_hash_and_the_lock_names_no_index_and_no_cuda_package():
    hashes = [text for _, of_entry in entries("requirements.lock") for text in of_entry or ["none"]]
    assert [text for text in hashes if not re.fullmatch("sha256:[0-9a-f]{64}", text)] == []
    assert not re.search(r"://|--index|--find-links", (ROOT / "requirements.lock").read_text())
    assert [name for name in LOCKED if re.match("nvidia|cuda|triton|torch", name)] == []
