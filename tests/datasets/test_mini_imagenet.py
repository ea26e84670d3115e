from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mnar.datasets import mini_imagenet
from mnar.datasets.mini_imagenet import decode

NAMES = {"n02": "house finch", "n01": "robin"}  # not in the order of their WNID


def write(root: Path, *, size: tuple[int, int] = (84, 84)) -> Path:
    rng = np.random.default_rng(0)
    folder = root / "mini-imagenet"
    for part, per_class in (("train", 3), ("test", 2)):
        for wnid in NAMES:
            (folder / part / wnid).mkdir(parents=True)
            for number in range(per_class):
                grey = Image.fromarray(rng.integers(0, 256, (6, 6), np.uint8))
                grey.convert("RGB").resize(size).save(folder / part / wnid / f"{number}.jpg")
    (folder / "classes.txt").write_text("".join(f"{wnid} {name}\n" for wnid, name in NAMES.items()))
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path)).transpose(2, 0, 1)


def test_images_equal_pillow_and_classes_follow_their_wnid(tmp_path: Path) -> None:
    folder = write(tmp_path)
    data = mini_imagenet(tmp_path)
    assert data.class_names == ("robin", "house finch")
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_y.tolist() == [0, 0, 1, 1]
    assert data.train_x.is_contiguous()
    assert np.array_equal(data.train_x[2], pixels(folder / "train" / "n01" / "2.jpg"))
    assert np.array_equal(data.train_x[3], pixels(folder / "train" / "n02" / "0.jpg"))
    assert np.array_equal(data.test_x[3], pixels(folder / "test" / "n02" / "1.jpg"))


def test_the_second_start_reads_the_cache_and_not_the_images(tmp_path: Path) -> None:
    folder = write(tmp_path)
    first = mini_imagenet(tmp_path)
    for path in folder.glob("*/*/*.jpg"):
        path.write_bytes(b"")
    again = mini_imagenet(folder)
    assert np.array_equal(first.train_x, again.train_x)
    assert np.array_equal(first.test_x, again.test_x)
    assert not list(folder.glob("*.partial"))


def test_another_set_of_files_is_not_served_from_the_cache(tmp_path: Path) -> None:
    folder = write(tmp_path)
    mini_imagenet(tmp_path)
    (folder / "train" / "n01" / "0.jpg").rename(folder / "train" / "n01" / "9.jpg")
    data = mini_imagenet(tmp_path)
    assert np.array_equal(data.train_x[2], pixels(folder / "train" / "n01" / "9.jpg"))


def test_a_cache_that_cannot_be_written_leaves_the_data_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    folder = write(tmp_path)
    monkeypatch.setattr(np, "save", full_disk)
    assert mini_imagenet(tmp_path).train_x.shape == (6, 3, 84, 84)
    assert sorted(path.name for path in folder.iterdir()) == ["classes.txt", "test", "train"]


def test_a_damaged_cache_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = write(tmp_path)
    mini_imagenet(tmp_path)
    cache = next(folder.glob("train-*.npy"))
    for content in (b"", cache.read_bytes()[:-1], next(folder.glob("test-*.npy")).read_bytes()):
        cache.write_bytes(content)
        with pytest.raises(ValueError, match=f"{cache.name} .*delete it"):
            mini_imagenet(tmp_path)


@pytest.mark.parametrize("size", [(168, 120), (120, 168)])
def test_another_size_is_resized_by_its_shorter_side_and_cut_at_the_centre(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8))
    image.save(tmp_path / "image.png")
    scaled = image.resize((117, 84) if size[0] > size[1] else (84, 117), Image.Resampling.LANCZOS)
    box = (16, 0, 100, 84) if size[0] > size[1] else (0, 16, 84, 100)  # (117 - 84) / 2 = 16.5, rounded to even
    assert np.array_equal(decode(tmp_path / "image.png"), np.asarray(scaled.crop(box)).transpose(2, 0, 1))


def test_grey_images_become_colour(tmp_path: Path) -> None:
    Image.new("L", (84, 84), 7).save(tmp_path / "grey.png")
    assert np.array_equal(decode(tmp_path / "grey.png"), np.full((3, 84, 84), 7))


def test_a_truncated_image_is_named_and_nothing_is_cached(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "train" / "n02" / "1.jpg"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"n02.1\.jpg is not a whole image"):
        mini_imagenet(tmp_path)
    assert not list(folder.glob("*.npy"))


def test_classes_that_do_not_match_their_folders_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "train" / "n03").mkdir()
    with pytest.raises(ValueError, match=r"differ in \['n03'\]"):
        mini_imagenet(tmp_path)


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for path in (folder / "test" / "n01").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"n01 has no \*\.jpg"):
        mini_imagenet(tmp_path)


def test_missing_folders_name_layout_and_option(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mini-imagenet/ with train, test, classes.txt.*--data"):
        mini_imagenet(tmp_path)
