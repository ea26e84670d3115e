"""`--launcher ray` of cache: two workers of a real Ray lead to the bytes that one machine writes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mnar.datasets.user_files import image_cache
from mnar.datasets.user_files.image_cache import CACHE_FOLDER, UNKNOWN_LENGTH
from mnar.datasets.user_files.image_decode import Shape, Unreadable
from mnar.datasets.user_files.image_store import KnownFile
from mnar.own_data import fill_cache as module
from mnar.own_data.fill_cache import FilledCache, fill_cache
from tests.own_data.image_folders import KINDS, NUM_READABLE, cached_files, write_class_folders, write_folder_with_csv
from tests.support.command import failing_with, run_here, start

pytest.importorskip("ray", reason="needs pip install 'mnar[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

Decode = Callable[[Path, Shape], npt.NDArray[np.uint8]]


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_PER_TASK", 3)


def fill_both(source: Path, folder: Path, size: int | None = None) -> FilledCache:
    """Fill the cache on one machine and, after removing it, with Ray; compare the files."""
    one = fill_cache(source, size=size)
    files = cached_files(folder)
    shutil.rmtree(folder / CACHE_FOLDER)
    many = fill_cache(source, size=size, launcher="ray")
    assert cached_files(folder) == files
    assert len(files) == 2, "the array and the manifest"
    assert many == one
    return many


@pytest.mark.parametrize("kind", KINDS)
def test_array_and_manifest_have_the_bytes_of_one_machine(cluster: str, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    filled = fill_both(KINDS[kind](folder), folder)
    assert filled.num_images == NUM_READABLE
    assert any("cut.png (" in note and "text.png (" in note for note in filled.notes)


def test_grey_images_of_a_chosen_size_in_a_relative_path_have_the_bytes_of_one_machine(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_class_folders(tmp_path / "photos")
    for number in range(NUM_READABLE):
        if number % 5 != 2:
            next(folder.rglob(f"{number:02}.*")).unlink()
    for path in (folder / "ant", folder / "unlabeled"):
        shutil.rmtree(path)
    monkeypatch.chdir(tmp_path)
    assert fill_both(Path("photos"), folder, size=6).shape == (1, 6, 6)


def test_after_one_file_has_changed_the_workers_decode_this_file_only(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, decoded, real = write_class_folders(tmp_path / "photos"), tmp_path / "decoded", image_cache.decode
    decoded.mkdir()

    def noting(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        (decoded / f"{path.name} {os.getpid()}").touch()
        return real(path, shape)

    monkeypatch.setattr(image_cache, "decode", noting)
    fill_cache(folder, launcher="ray")
    workers = {path.name.split()[1] for path in decoded.iterdir()}
    names = {path.name.split()[0] for path in decoded.iterdir()}
    assert len(names) == NUM_READABLE + 1, "the header of the truncated file can be read"
    assert workers - {str(os.getpid())}
    shutil.rmtree(decoded)
    decoded.mkdir()
    changed = folder / "bee" / "02.bmp"
    changed.write_bytes(changed.read_bytes()[:-8] + b"\1" * 8)
    fill_cache(folder, launcher="ray")
    assert [path.name.split()[0] for path in decoded.iterdir()] == ["02.bmp"]
    files = cached_files(folder)
    shutil.rmtree(folder / CACHE_FOLDER)
    fill_cache(folder)
    assert cached_files(folder) == files


def test_the_files_of_a_killed_worker_are_decoded_again_with_the_same_bytes(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, killed, real = write_class_folders(tmp_path / "photos"), tmp_path / "killed", image_cache.decode

    def deadly_once(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        if path.name == "11.bmp" and not killed.exists():
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, shape)

    fill_cache(folder)
    files = cached_files(folder)
    shutil.rmtree(folder / CACHE_FOLDER)
    monkeypatch.setattr(image_cache, "decode", deadly_once)
    fill_cache(folder, launcher="ray")
    assert killed.read_text() != str(os.getpid())
    assert cached_files(folder) == files


@pytest.mark.parametrize("former", [False, True])
def test_files_that_end_their_worker_each_time_are_an_error_and_leave_the_cache_as_it_was(
    cluster: str, former: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = write_class_folders(tmp_path / "photos"), image_cache.decode
    if former:
        fill_cache(folder)
        changed = folder / "unlabeled" / "08.bmp"
        changed.write_bytes(changed.read_bytes()[:-8] + b"\1" * 8)

    def deadly(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        if path.name == "08.bmp":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, shape)

    (folder / CACHE_FOLDER).mkdir(exist_ok=True)
    before = cached_files(folder)
    monkeypatch.setattr("mnar.bench.launchers.ray_files.MOST_LOSSES", 1)
    monkeypatch.setattr(image_cache, "decode", deadly)
    with pytest.raises(ValueError, match=r"several workers were lost while they read .*08\.bmp.*, perhaps because"):
        fill_cache(folder, launcher="ray")
    assert cached_files(folder) == before


def test_a_worker_that_has_lost_the_file_system_makes_no_file_unreadable(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = write_class_folders(tmp_path / "photos"), os.getpid()
    look, real = image_cache._look_at_file, image_cache.decode
    fill_cache(folder)
    files = cached_files(folder)
    shutil.rmtree(folder / CACHE_FOLDER)

    def look_here_only(root: Path, name: str) -> KnownFile:
        if os.getpid() != here and name.startswith("ant"):
            return KnownFile(UNKNOWN_LENGTH, 0, problem="No such file or directory")
        return look(root, name)

    def decode_here_only(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        if os.getpid() != here and path.name.startswith("1"):
            raise Unreadable("Stale file handle")
        return real(path, shape)

    monkeypatch.setattr(image_cache, "_look_at_file", look_here_only)
    monkeypatch.setattr(image_cache, "decode", decode_here_only)
    fill_cache(folder, launcher="ray")
    assert cached_files(folder) == files


# --- nodes and options ---


def test_a_node_that_sees_another_folder_is_found_before_the_work(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process counts one entry more than the workers."""
    from mnar.bench.launchers import ray_files

    folder, size = write_class_folders(tmp_path / "photos"), ray_files._size
    monkeypatch.setattr(ray_files, "_size", lambda path: size(path) + 1)
    with pytest.raises(ValueError, match=r"does not see .*photos as this machine does; put the images on a file"):
        fill_cache(folder, launcher="ray")
    assert not (folder / CACHE_FOLDER).exists()


@pytest.mark.parametrize("package", ["mnar", "pillow"])
def test_a_node_with_another_version_is_found_before_the_work(
    cluster: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mnar.bench.launchers import ray_files

    folder, versions = write_class_folders(tmp_path / "photos"), ray_files._versions
    monkeypatch.setattr(ray_files, "_versions", lambda packages: {**versions(packages), package: "0.0.1"})
    with pytest.raises(ValueError, match=rf"but the command was started with {package} 0\.0\.1; install the same"):
        fill_cache(folder, launcher="ray")
    assert not (folder / CACHE_FOLDER).exists()


def test_workers_that_need_more_than_every_node_has_are_refused(cluster: str, tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "photos")
    with pytest.raises(ValueError, match=r"a worker needs 64 CPU, and no node .* or --launcher local"):
        fill_cache(folder, launcher="ray", launcher_options=["num_cpus=64"])


def test_the_command_takes_the_address_prints_what_one_machine_prints_and_inspect_decodes_nothing(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder_with_csv(tmp_path / "photos")
    one = run_here(capsys, monkeypatch, "cache", folder)
    assert one.code == 0, one.errors
    files = cached_files(folder)
    shutil.rmtree(folder / CACHE_FOLDER)
    options = ("--launcher", "ray", "--launcher-option", f"address={cluster}")
    with start("cache", str(folder), *options) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert cached_files(folder) == files
    assert below_the_bar(output) == below_the_bar(one.output)
    assert errors == ""

    for work in ("_look_at_file", "_image_or_problem"):
        monkeypatch.setattr(image_cache, work, failing_with(AssertionError("a file was read again")))
    inspected = run_here(capsys, monkeypatch, "inspect", folder, "--out", tmp_path / "inspect.json")
    assert inspected.code == 0, inspected.errors
    assert cached_files(folder) == files


def below_the_bar(output: str) -> str:
    """The sentences below the progress bar."""
    return output[output.index("labels.csv: ") :]
