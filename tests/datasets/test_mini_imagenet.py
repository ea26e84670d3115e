from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mnar.datasets import mini_imagenet
from mnar.datasets.mini_imagenet import decode
from mnar.datasets.user_files import image_store
from mnar.datasets.user_files.image_cache import CACHE_FOLDER

NAMES = {"n02": "house finch", "n01": "robin"}  # not in the order of the WordNet IDs
SHAPE = (3, 84, 84)


def write(root: Path, *, size: tuple[int, int] = (84, 84), mode: str = "RGB") -> Path:
    rng = np.random.default_rng(0)
    folder = root / "mini-imagenet"
    for part, per_class in (("train", 3), ("test", 2)):
        for wnid in NAMES:
            (folder / part / wnid).mkdir(parents=True)
            for number in range(per_class):
                grey = Image.fromarray(rng.integers(0, 256, (6, 6), np.uint8))
                grey.convert(mode).resize(size).save(folder / part / wnid / f"{number}.jpg")
    (folder / "classes.txt").write_text("".join(f"{wnid} {name}\n" for wnid, name in NAMES.items()))
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)


def cached_array(folder: Path) -> Path:
    (path,) = (folder / CACHE_FOLDER).glob("*.npy")
    return path


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_equal_pillow_and_classes_follow_their_wnid(tmp_path: Path, mode: str) -> None:
    folder = write(tmp_path, mode=mode)
    data = mini_imagenet(tmp_path)
    assert data.class_names == ("robin", "house finch")
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_y.tolist() == [0, 0, 1, 1]
    assert data.train_x.is_contiguous()
    for part, images in (("train", data.train_x), ("test", data.test_x)):
        expected = [pixels(path) for path in sorted((folder / part).glob("*/*.jpg"))]
        assert np.array_equal(images, expected)


def test_the_second_start_reads_the_cache_and_opens_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, size=(100, 90))
    first = mini_imagenet(tmp_path)
    assert cached_array(folder).name.startswith("mini_imagenet-84x84-")
    monkeypatch.setattr(Image, "open", lambda *args, **options: pytest.fail("an image was opened"))
    again = mini_imagenet(folder)
    assert np.array_equal(first.train_x, again.train_x)
    assert np.array_equal(first.test_x, again.test_x)


def test_another_set_of_files_is_not_served_from_the_cache(tmp_path: Path) -> None:
    folder = write(tmp_path)
    mini_imagenet(tmp_path)
    (folder / "train" / "n01" / "0.jpg").rename(folder / "train" / "n01" / "9.jpg")
    data = mini_imagenet(tmp_path)
    assert np.array_equal(data.train_x[2], pixels(folder / "train" / "n01" / "9.jpg"))


def test_the_images_of_a_folder_that_cannot_be_written_are_cached_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write(tmp_path)
    (folder / CACHE_FOLDER).write_text("in the way")
    data = mini_imagenet(tmp_path)
    assert np.array_equal(data.train_x[0], pixels(folder / "train" / "n01" / "0.jpg"))
    assert len(list((tmp_path / "cache").glob("mnar/mini-imagenet-*/*.npy"))) == 1
    assert sorted(path.name for path in folder.iterdir()) == [CACHE_FOLDER, "classes.txt", "test", "train"]


def test_a_full_disk_is_an_error_with_its_remedy_before_any_image_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path)
    monkeypatch.setattr(image_store.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1000, 1000, 0))
    monkeypatch.setattr(Image.Image, "convert", lambda *args: pytest.fail("an image was decoded"))
    with pytest.raises(
        OSError, match=r"could not write .*mini_imagenet-84x84-.*\.npy, 0\.2 MB .*; free some space, or"
    ):
        mini_imagenet(tmp_path)
    assert [path.name for path in (folder / CACHE_FOLDER).iterdir()] == [".lock"]


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    folder = write(tmp_path)
    expected = mini_imagenet(tmp_path).train_x.clone()
    cache = cached_array(folder)
    for content in (b"", cache.read_bytes()[:-1]):
        cache.unlink()
        cache.write_bytes(content)
        assert np.array_equal(mini_imagenet(tmp_path).train_x, expected)


@pytest.mark.parametrize("size", [(168, 120), (120, 168)])
def test_another_size_is_resized_by_its_shorter_side_and_cut_at_the_centre(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8))
    image.save(tmp_path / "image.png")
    scaled = image.resize((117, 84) if size[0] > size[1] else (84, 117), Image.Resampling.LANCZOS)
    box = (16, 0, 100, 84) if size[0] > size[1] else (0, 16, 84, 100)  # (117 - 84) / 2 = 16.5, rounded to even
    assert np.array_equal(decode(tmp_path / "image.png", SHAPE), np.asarray(scaled.crop(box)).transpose(2, 0, 1))


def test_grey_images_become_colour(tmp_path: Path) -> None:
    Image.new("L", (84, 84), 7).save(tmp_path / "grey.png")
    assert np.array_equal(decode(tmp_path / "grey.png", SHAPE), np.full(SHAPE, 7))


def test_a_truncated_image_is_named_on_every_start_until_it_is_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "train" / "n02" / "1.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:300])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"train.n02.1\.jpg is not a complete image \(.+\); get a new copy"):
            mini_imagenet(tmp_path)
    path.write_bytes(whole)
    assert np.array_equal(mini_imagenet(tmp_path).train_x[4], pixels(path))


def test_classes_that_do_not_match_their_folders_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "train" / "n03").mkdir()
    with pytest.raises(ValueError, match=r"differ in \['n03'\]"):
        mini_imagenet(tmp_path)


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for path in (folder / "test" / "n01").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"n01 has no \*\.jpg file"):
        mini_imagenet(tmp_path)


def test_missing_folders_name_layout_and_option(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mini-imagenet/ with train, test, classes.txt.*--data"):
        mini_imagenet(tmp_path)
