from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from mnar.datasets.user_files import image_cache, image_store
from mnar.datasets.user_files.image_cache import CACHE_FOLDER, Decoder, Images, load_images
from mnar.datasets.user_files.image_decode import Shape, Unreadable
from tests.support.killing import Trap, in_a_child, kill_me, was_killed

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 9, 3), np.uint8)
NAMES = [f"{i}.png" for i in range(6)]
MAX_MOMENTS = 60  # writing a cache takes about 20 system calls at which the process can be killed


def write(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six RGB images of 8×9."""
    for name, pixels in zip(NAMES, PIXELS, strict=True):
        write(tmp_path / "data" / name, pixels)
    return tmp_path / "data"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that receives the name of each file that is decoded during the test."""
    names: list[str] = []
    real = image_cache.decode

    def noting(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        names.append(path.name)
        return real(path, shape)

    monkeypatch.setattr(image_cache, "decode", noting)
    return names


def rgb(images: Images) -> npt.NDArray[np.uint8]:
    return images.x.transpose(0, 2, 3, 1)


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_images_of_one_small_size_are_kept_to_the_bit_and_mapped_not_loaded(root: Path) -> None:
    images = load_images(NAMES, root=root)
    assert isinstance(images.x, np.memmap)
    assert images.x.dtype == np.uint8
    assert np.array_equal(rgb(images), PIXELS)
    assert images.readable.tolist() == [True] * 6
    assert images.notes == ()


def test_rows_follow_the_paths(root: Path) -> None:
    load_images(NAMES, root=root)
    assert np.array_equal(rgb(load_images(NAMES[::-1], root=root)), PIXELS[::-1])
    assert np.array_equal(rgb(load_images(NAMES[::-1], root=root)), PIXELS[::-1])
    assert np.array_equal(rgb(load_images(NAMES[2:4], root=root)), PIXELS[2:4])


def test_grey_images_have_one_channel_until_a_coloured_one_joins(root: Path) -> None:
    for name in ("a.png", "b.png"):
        write(root / name, PIXELS[0, ..., 0])
    assert np.array_equal(load_images(["a.png", "b.png"], root=root).x, np.stack([PIXELS[:1, ..., 0]] * 2))
    images = load_images(["a.png", "b.png", "0.png"], root=root)
    assert images.x.shape == (3, 3, 8, 9)
    assert np.array_equal(images.x[0], np.stack([PIXELS[0, ..., 0]] * 3))
    assert images.notes == ("2 of 3 images are grey and became RGB like the others",)


@pytest.mark.parametrize(
    ("shapes", "size", "expected"),
    [
        ([(128, 100)], None, (128, 100)),
        ([(129, 100)], None, (64, 64)),
        ([(30, 40), (40, 30)], None, (64, 64)),
        ([(30, 40)], 16, (16, 16)),
        ([(30, 40), (8, 8)], (10, 12), (10, 12)),
    ],
)
def test_the_common_size_and_a_note_when_it_is_not_that_of_the_files(
    tmp_path: Path, shapes: list[tuple[int, int]], size: int | tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    for i, shape in enumerate(shapes):
        write(tmp_path / f"{i}.png", np.zeros((*shape, 3), np.uint8))
    images = load_images([f"{i}.png" for i in range(len(shapes))], root=tmp_path, size=size)
    assert images.x.shape == (len(shapes), 3, *expected)
    assert (images.notes == ()) == (shapes == [expected])
    for note in images.notes:
        assert f"{shapes[-1][0]}×{shapes[-1][1]}" in note
        assert f"became {expected[0]}×{expected[1]}" in note


@pytest.mark.parametrize("size", [0, -1, (8, 0)])
def test_a_size_without_pixels_is_refused(root: Path, size: int | tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="has no pixels; give at least 1 pixel per side"):
        load_images(NAMES, root=root, size=size)


def test_unreadable_files_are_left_out_and_five_of_them_named(root: Path) -> None:
    whole = (root / "0.png").read_bytes()
    (root / "cut.png").write_bytes(whole[:-40])
    (root / "a folder.png").mkdir()
    os.mkfifo(root / "pipe.png")
    bad = ["cut.png", "absent.png", "a folder.png", "pipe.png"]
    for i in range(8):
        (root / f"text{i}.png").write_text("not an image")
        bad.append(f"text{i}.png")
    images = load_images([*bad[:3], *NAMES, *bad[3:]], root=root)
    for again in (images, load_images([*bad[:3], *NAMES, *bad[3:]], root=root)):
        assert again.readable.tolist() == [False] * 3 + [True] * 6 + [False] * 9
        assert np.array_equal(rgb(again), PIXELS)
        (note,) = again.notes
        assert note.startswith("12 files cannot be read and are left out: cut.png (")
        assert "absent.png (No such file or directory), a folder.png (not a file), pipe.png (not a file)" in note
        assert note.endswith("text0.png (none of PNG, JPEG, GIF, BMP, TIFF, WEBP, PPM) and 7 more")


def test_an_image_over_the_limits_is_left_out_and_the_limit_named(root: Path) -> None:
    Image.new("1", (30_000, 2)).save(root / "long.png")
    Image.new("1", (9_500, 9_500)).save(root / "large.png")
    images = load_images(["long.png", "large.png", *NAMES], root=root)
    assert np.array_equal(rgb(images), PIXELS)
    assert "long.png (a side over 20,000 pixels), large.png (more than 89 megapixels)" in images.notes[0]


@pytest.mark.parametrize("content", ["not an image", "cut off"])
def test_no_readable_image_at_all_is_an_error_that_names_some(root: Path, content: str) -> None:
    bad = (root / "0.png").read_bytes()[:-40] if content == "cut off" else content.encode()
    (root / "bad.png").write_bytes(bad)
    with pytest.raises(
        ValueError, match=r"has no image that can be read: 1 files .*: bad\.png \(.*; replace the files"
    ):
        load_images(["bad.png"], root=root)


def test_a_path_twice_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"1\.png is listed twice; list each image once"):
        load_images(["0.png", "1.png", "1.png"], root=root)


def test_the_second_start_opens_no_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images(NAMES, root=root)
    opened: list[str] = []
    real = Path.open

    def noting(path: Path, *args: object, **options: object) -> object:
        opened.append(path.name)
        return real(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", noting)
    monkeypatch.setattr(Image, "open", lambda *args, **options: pytest.fail("an image was opened"))
    second = load_images(NAMES, root=root)
    assert set(opened) & set(NAMES) == set()
    assert np.array_equal(second.x, first.x)
    assert second.notes == first.notes


def test_a_file_that_was_only_touched_is_read_and_not_decoded(root: Path, decoded: list[str]) -> None:
    load_images(NAMES, root=root)
    assert sorted(decoded) == NAMES
    decoded.clear()
    os.utime(root / "3.png", (1, 1))
    assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
    assert decoded == []


def test_of_changed_added_removed_and_renamed_files_only_new_content_is_decoded(root: Path, decoded: list[str]) -> None:
    load_images(NAMES, root=root)
    decoded.clear()
    write(root / "3.png", 255 - PIXELS[3])
    write(root / "new.png", PIXELS[0, ::-1])
    (root / "1.png").rename(root / "renamed.png")
    (root / "5.png").unlink()
    images = load_images(["0.png", "2.png", "3.png", "4.png", "new.png", "renamed.png"], root=root)
    expected = np.stack([PIXELS[0], PIXELS[2], 255 - PIXELS[3], PIXELS[4], PIXELS[0, ::-1], PIXELS[1]])
    assert np.array_equal(rgb(images), expected)
    assert sorted(decoded) == ["3.png", "new.png"]


def test_the_array_of_former_content_is_removed_and_stays_readable_where_it_is_mapped(root: Path) -> None:
    before = load_images(NAMES, root=root)
    write(root / "3.png", 255 - PIXELS[3])
    load_images(NAMES, root=root)
    assert len(list((root / CACHE_FOLDER).glob("*.npy"))) == 1
    assert np.array_equal(rgb(before), PIXELS)


def test_each_size_has_its_own_cache(root: Path, decoded: list[str]) -> None:
    for size in (None, 4, (4, 6)):
        load_images(NAMES, root=root, size=size)
    decoded.clear()
    for size, shape in ((None, (8, 9)), (4, (4, 4)), ((4, 6), (4, 6))):
        assert load_images(NAMES, root=root, size=size).x.shape[2:] == shape
    assert decoded == []


def negative(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
    return 255 - image_cache.decode(path, shape)


def test_each_decoder_has_its_own_cache_of_the_same_files(root: Path, decoded: list[str]) -> None:
    for _ in range(2):
        assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
        assert np.array_equal(rgb(load_images(NAMES, root=root, decoder=Decoder("negative", negative))), 255 - PIXELS)
    assert sorted(decoded) == sorted(NAMES * 2), "each decoder decodes each file once"
    names = sorted(path.name.rpartition("-")[0] for path in (root / CACHE_FOLDER).glob("*.npy"))
    assert names == ["auto", "negative-auto"]


def test_a_decoder_decides_the_number_of_channels_and_which_files_are_unreadable(root: Path) -> None:
    def unreadable(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        if path.name == "b.png":
            raise Unreadable("not in this test")
        return image_cache.decode(path, shape)

    for name in ("a.png", "b.png"):
        write(root / name, PIXELS[0, ..., 0])
    decoder = Decoder("partial", unreadable, num_channels=3)
    for _ in range(2):
        images = load_images(["a.png", "b.png"], root=root, decoder=decoder)
        assert np.array_equal(images.x, [np.stack([PIXELS[0, ..., 0]] * 3)])
        assert images.problems == {"b.png": "not in this test"}
        assert images.readable.tolist() == [True, False]


def test_the_cache_key_of_a_users_folder_is_a_hash_of_format_size_and_contents(root: Path) -> None:
    contents = [hashlib.sha256((root / name).read_bytes()).hexdigest() for name in NAMES]
    for size, name in ((None, "auto"), (4, "4x4")):
        load_images(NAMES, root=root, size=size)
        key = hashlib.sha256(json.dumps([1, name, contents]).encode()).hexdigest()[:24]
        assert (root / CACHE_FOLDER / f"{name}-{key}.npy").exists()


def test_a_truncated_image_of_another_size_counts_the_same_on_every_start(root: Path, decoded: list[str]) -> None:
    write(root / "cut.png", RNG.integers(0, 256, (30, 30, 3), np.uint8))
    (root / "cut.png").write_bytes((root / "cut.png").read_bytes()[:-100])
    first = load_images([*NAMES, "cut.png"], root=root)
    decoded.clear()
    assert load_images([*NAMES, "cut.png"], root=root).x.shape == first.x.shape
    assert decoded == []


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def fill(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


@pytest.mark.parametrize("pattern", ["*.npy", "*.json"])
@pytest.mark.parametrize(
    "damage",
    [
        cut_in_half,
        Path.unlink,
        fill(b""),
        fill(b"[1, 2]"),
        fill(b'{"format": 1, "files": {"0.png": [1, 2, 3, 4, 5, 6, 7, 8]}}'),
        fill(b'{"format": 0, "files": {}}'),
        lambda path: np.save(path.open("wb"), np.zeros((6, 3, 8, 8), np.uint8)),
        lambda path: np.save(path.open("wb"), np.array([{}], object), allow_pickle=True),
    ],
)
def test_a_damaged_cache_is_made_again(root: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    load_images(NAMES, root=root)
    (path,) = (root / CACHE_FOLDER).glob(pattern)
    damage(path)
    for _ in range(2):
        assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)


@pytest.mark.parametrize("place", [-1, -100, -500])
def test_a_changed_pixel_of_the_cache_is_found_and_the_images_are_decoded_again(
    root: Path, decoded: list[str], place: int
) -> None:
    load_images(NAMES, root=root)
    (path,) = (root / CACHE_FOLDER).glob("*.npy")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    decoded.clear()
    assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
    assert sorted(decoded) == NAMES
    load_images(NAMES, root=root)
    assert len(decoded) == len(NAMES), "the new cache is whole"


def test_a_changed_byte_of_the_manifest_makes_every_file_be_read_again_and_none_be_decoded(
    root: Path, decoded: list[str]
) -> None:
    load_images(NAMES, root=root)
    manifest = root / CACHE_FOLDER / "auto.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace(",8,9,false", ",8,8,false"))
    decoded.clear()
    assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
    assert manifest.read_text() == whole
    assert decoded == []


def test_a_cache_of_an_earlier_version_is_used_and_gets_digests(root: Path, decoded: list[str]) -> None:
    load_images(NAMES, root=root)
    manifest = root / CACHE_FOLDER / "auto.json"
    whole = manifest.read_text()
    manifest.write_text(json.dumps({name: json.loads(whole)[name] for name in ("format", "files")}))
    decoded.clear()
    assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
    assert decoded == []
    assert manifest.read_text() == whole


def test_of_an_array_with_many_blocks_evenly_spaced_ones_are_verified(
    root: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    monkeypatch.setattr(image_store, "BLOCK_BYTES", 1)  # a block is one image
    monkeypatch.setattr(image_store, "MOST_VERIFIED", 3)  # of the six blocks: 0, 2 and 4
    load_images(NAMES, root=root)
    (path,) = (root / CACHE_FOLDER).glob("*.npy")
    whole = path.read_bytes()
    found = []
    for number in range(6):
        content = bytearray(whole)
        content[len(whole) - (6 - number) * PIXELS[0].size] ^= 1
        path.write_bytes(content)
        decoded.clear()
        load_images(NAMES, root=root)
        if decoded:
            found.append(number)
        path.write_bytes(whole)
    assert found == [0, 2, 4]


def test_killed_at_any_moment_the_next_start_gives_the_right_images_and_leaves_no_other_file(root: Path) -> None:
    for former in (False, True):
        for moment in range(1, MAX_MOMENTS):
            shutil.rmtree(root / CACHE_FOLDER, ignore_errors=True)
            if former:
                load_images(NAMES[:1], root=root)

            def die(moment: int = moment) -> None:
                Trap(moment, kill_me).set(pytest.MonkeyPatch())
                load_images(NAMES[:2], root=root)

            killed = was_killed(in_a_child(die))
            assert np.array_equal(rgb(load_images(NAMES[:2], root=root)), PIXELS[:2])
            assert len(files_in(root / CACHE_FOLDER)) == 3  # the array, the manifest and the lock
            if not killed:
                break
        assert not killed
        assert moment > 10


def test_processes_at_once_do_not_disturb_each_other(root: Path) -> None:
    def load() -> None:
        names = NAMES if os.getpid() % 2 else NAMES[:4]
        for _ in range(5):
            assert np.array_equal(rgb(load_images(names, root=root)), PIXELS[: len(names)])

    children = [in_a_child(load) for _ in range(4)]
    assert not any(was_killed(child) for child in children)


def test_a_second_thread_waits_and_finds_the_cache_filled(
    root: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = image_cache.decode

    def slower(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
        time.sleep(0.02)
        return slow(path, shape)

    monkeypatch.setattr(image_cache, "decode", slower)
    threads = [threading.Thread(target=load_images, args=(NAMES,), kwargs={"root": root}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(decoded) == NAMES


def test_a_full_disk_is_noticed_before_anything_is_decoded(
    root: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_store.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1000, 1000, 0))
    with pytest.raises(
        OSError,
        match=r"could not write .*\.npy, 0\.0 MB .*no space.*free some space, or replace .*mnar-cache by a link",
    ):
        load_images(NAMES, root=root)
    assert decoded == []
    assert files_in(root / CACHE_FOLDER) == {".lock"}


def test_a_disk_that_fills_up_meanwhile_is_a_clear_error_and_costs_no_former_cache(root: Path) -> None:
    load_images(NAMES[:1], root=root)
    before = files_in(root / CACHE_FOLDER)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # the largest size of a file, in bytes
    try:
        with pytest.raises(OSError, match=r"could not write .*\.npy, .*free some space, or replace"):
            load_images(NAMES, root=root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_in(root / CACHE_FOLDER) == before


def test_images_in_a_folder_that_cannot_be_written_are_cached_in_the_users_cache_folder(
    root: Path, tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (root / CACHE_FOLDER).write_text("in the way")
    for _ in range(2):
        assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
    assert sorted(decoded) == NAMES
    (folder,) = (tmp_path / "cache" / "mnar").iterdir()
    assert folder.name.startswith("data-")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / CACHE_FOLDER))
    with pytest.raises(
        OSError, match=r"there is no folder to store the decoded images in .*; set .* XDG_CACHE_HOME to"
    ):
        load_images(NAMES, root=root)


def test_a_link_in_the_place_of_the_cache_folder_is_followed(root: Path, tmp_path: Path, decoded: list[str]) -> None:
    (tmp_path / "other disk").mkdir()
    (root / CACHE_FOLDER).symlink_to(tmp_path / "other disk")
    for _ in range(2):
        assert np.array_equal(rgb(load_images(NAMES, root=root)), PIXELS)
    assert sorted(decoded) == NAMES
    assert any((tmp_path / "other disk").glob("*.npy"))


def test_data_of_the_same_names_lengths_and_times_do_not_mix_in_one_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    roots = [tmp_path / "a" / "data", tmp_path / "b" / "data"]
    for number, pixels in enumerate(PIXELS[:2]):
        roots[number].mkdir(parents=True)
        Image.fromarray(pixels).save(roots[number] / "x.bmp")
        os.utime(roots[number] / "x.bmp", (1, 1))
        (roots[number] / CACHE_FOLDER).write_text("in the way")
    for _ in range(2):
        for number in range(2):
            images = load_images(["x.bmp"], root=roots[number])
            assert np.array_equal(rgb(images)[0], PIXELS[number])


def test_progress_only_grows_and_ends_at_the_total(root: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_images(NAMES, root=root, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 12) for done in range(1, 13)] + [(12, 12)]
    calls.clear()
    load_images(NAMES, root=root, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(12, 12)]


def test_the_manifest_is_json_that_remembers_length_time_and_content(root: Path) -> None:
    load_images(NAMES, root=root)
    files = json.loads((root / CACHE_FOLDER / "auto.json").read_text())["files"]
    status = (root / "2.png").stat()
    assert list(files) == NAMES
    assert files["2.png"][:2] == [status.st_size, status.st_mtime_ns]
