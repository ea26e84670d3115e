"""`mnar cache` on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mnar.bench import launchers
from mnar.datasets.user_files import image_cache
from tests.support.command import Mnar, failing_with
from tests.support.own_data_files import write_images, write_table


def test_cache_prints_images_size_and_problems_and_other_commands_then_decode_nothing(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "animals")
    (tmp_path / "animals" / "bad.png").write_text("not an image")
    done = mnar("cache", "animals", "--size", 6)
    assert done.code == 0, done.errors
    (array,) = (tmp_path / "animals/.mnar-cache").glob("6x6-*.npy")
    assert f"36 grey images of 6×6 pixels, 0.0 MB: {array}" in done.output
    assert "1 files cannot be read and are left out: bad.png (none of PNG," in done.output
    for work in ("_look_at_file", "_image_or_problem"):
        monkeypatch.setattr(image_cache, work, failing_with(AssertionError("a file was read again")))
    inspected = mnar("inspect", "animals", "--size", 6)
    assert inspected.code == 0, inspected.errors
    assert mnar("cache", "animals", "--size", 6).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("table.csv", "table.csv is a table, which has no image files to decode; name a folder of images"),
        ("absent", "no data at absent; check the path"),
        ("animals --launcher-option num_cpus=2", "is not for local processes; choose another --launcher"),
        ("animals --launcher ray --launcher-option num_cpus", "is not NAME=VALUE; write e.g."),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(mnar: Mnar, tmp_path: Path, arguments: str, message: str) -> None:
    write_table(tmp_path / "table.csv")
    write_images(tmp_path / "animals")
    refused = mnar("cache", *arguments.split())
    assert refused.code == 1
    assert message in refused.errors
    assert refused.errors.count("\n") == 1
    assert not (tmp_path / "animals/.mnar-cache").exists()


def test_without_ray_the_error_says_what_to_install_or_to_choose(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(launchers, "find_spec", lambda wanted: None if wanted == "ray" else find(wanted))
    write_images(tmp_path / "animals")
    refused = mnar("cache", "animals", "--launcher", "ray")
    assert refused.code == 1
    assert "pip install 'mnar[ray]', or choose --launcher local" in refused.errors
    assert not (tmp_path / "animals/.mnar-cache").exists()


def test_a_launcher_that_the_command_does_not_have_is_a_usage_error(mnar: Mnar) -> None:
    assert mnar("cache", "animals", "--launcher", "slurm").code == 2
