from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mnar.datasets.user_files.class_folders import read_class_folders

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 4, 5), np.uint8)


def write(folder: Path, *names: str) -> Path:
    for name, pixels in zip(names, PIXELS, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.mark.parametrize("unlabeled", ["unlabeled", "unlabelled", "unknown", "Unlabeled"])
def test_folders_are_classes_except_the_unlabelled_one(tmp_path: Path, unlabeled: str) -> None:
    names = [f"{unlabeled}/1.png", "dog/1.png", "cat/deep/1.png", f"{unlabeled}/more/2.png", "dog/2.png"]
    data = read_class_folders(write(tmp_path, *names))
    assert data.class_names == ("cat", "dog")
    assert dict(zip(data.row_names, data.y.tolist(), strict=True)) == dict(zip(names, [-1, 1, 0, -1, 1], strict=True))
    for name, x in zip(data.row_names, data.x, strict=True):
        assert np.array_equal(x[0], PIXELS[names.index(name)])


def test_the_user_can_name_further_unlabelled_folders(tmp_path: Path) -> None:
    names = ["cat/1.png", "dog/1.png", "todo/1.png", "unlabeled/1.png"]
    write(tmp_path, *names)
    data = read_class_folders(tmp_path, unlabeled=["todo"])
    assert data.class_names == ("cat", "dog")
    assert data.y.tolist() == [0, 1, -1, -1]
    shutil.rmtree(tmp_path / "unlabeled")
    assert read_class_folders(tmp_path, unlabeled=["todo"]).y.tolist() == [0, 1, -1]


def test_an_empty_folder_is_a_class_without_a_label(tmp_path: Path) -> None:
    write(tmp_path, "cat/1.png", "emu/1.png", "unlabeled/1.png")
    (tmp_path / "dog").mkdir()
    data = read_class_folders(tmp_path)
    assert data.class_names == ("cat", "dog", "emu")
    assert data.y.tolist() == [0, 2, -1]


def test_a_class_folder_may_have_a_name_that_means_no_label_in_a_table(tmp_path: Path) -> None:
    data = read_class_folders(write(tmp_path, "none/1.png", "-1/1.png", "unlabeled/1.png"))
    assert data.class_names == ("-1", "none")
    assert data.y.tolist() == [0, 1, -1]


def test_unreadable_images_are_left_out_with_a_note(tmp_path: Path) -> None:
    write(tmp_path, "cat/1.png", "cat/2.png", "dog/1.png", "unlabeled/1.png")
    (tmp_path / "cat" / "1.png").write_text("not an image")
    data = read_class_folders(tmp_path)
    assert list(data.row_names) == ["cat/2.png", "dog/1.png", "unlabeled/1.png"]
    assert data.y.tolist() == [0, 1, -1]
    assert len(data.x) == 3
    assert "1 files cannot be read and are left out: cat/1.png" in data.notes[0]


def test_size_and_progress_are_passed_on(tmp_path: Path) -> None:
    calls: list[int] = []
    folder = write(tmp_path / "data", "cat/1.png", "dog/1.png", "unlabeled/1.png")
    data = read_class_folders(folder, size=6, progress=lambda done, total: calls.append(done))
    assert data.x.shape == (3, 1, 6, 6)
    assert calls[-1] == 6


def test_without_an_unlabelled_folder_the_error_speaks_of_plain_supervised_learning(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"cat, dog and no unlabeled/, unlabelled/, unknown/: this is plain supervised"
    ):
        read_class_folders(write(tmp_path, "cat/1.png", "dog/1.png"))


def test_an_image_in_no_class_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"stray\.png is in no class folder; move it to its class or to unlabeled/"):
        read_class_folders(write(tmp_path, "cat/1.png", "dog/1.png", "unlabeled/1.png", "stray.png"))


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "readme.txt").write_text("soon")
    with pytest.raises(FileNotFoundError, match=r"holds no images \(PNG, JPEG"):
        read_class_folders(tmp_path)
    with pytest.raises(NotADirectoryError, match="absent is not a folder"):
        read_class_folders(tmp_path / "absent")


def test_labels_of_one_class_or_of_no_class_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every label is 'cat'"):
        read_class_folders(write(tmp_path / "one", "cat/1.png", "unlabeled/1.png"))
    with pytest.raises(ValueError, match="no row has a label"):
        read_class_folders(write(tmp_path / "none", "unlabeled/1.png"))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "1.png")
    folder = write(tmp_path / "data", "cat/1.png", "dog/1.png", "unlabeled/1.png")
    (folder / "emu").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"data/emu is a link that leads out of .*elsewhere"):
        read_class_folders(folder)


def test_links_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "cat/1.png", "dog/1.png", "unlabeled/1.png")
    (folder / "cat/2.png").symlink_to("3.png")
    (folder / "cat/3.png").symlink_to("2.png")
    with pytest.raises(ValueError, match=r"cat/[23]\.png is a link that cannot be followed .*; remove the link, or"):
        read_class_folders(folder)
