"""The cache of decoded images is filled before it is needed, without Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mnar.datasets.user_files import image_cache, read_data
from mnar.datasets.user_files.all_images import load_all_images
from mnar.own_data.fill_cache import fill_cache
from tests.own_data.image_folders import KINDS, NUM_DAMAGED, NUM_READABLE, cached_files
from tests.support.command import failing_with


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_of_labelled_images_finds_all_images_in_the_cache(
    tmp_path: Path, kind: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KINDS[kind](tmp_path / "photos")
    calls: list[tuple[int, int]] = []
    filled = fill_cache(source, size=size, progress=lambda done, total: calls.append((done, total)))
    assert filled.shape == (3, size or 64, size or 64)
    assert filled.num_images == NUM_READABLE
    assert filled.num_bytes == filled.file.stat().st_size > NUM_READABLE * np.prod(filled.shape)
    assert any(f"{NUM_DAMAGED} files cannot be read and are left out" in note for note in filled.notes)
    assert any("absent.png" in note for note in filled.notes) == (kind != "class folders")
    num_files = NUM_READABLE + NUM_DAMAGED
    assert calls[-1] == (2 * num_files, 2 * num_files)

    before = cached_files(tmp_path / "photos")
    assert filled.file.name in before
    for work in ("_look_at_file", "_image_or_problem"):
        monkeypatch.setattr(image_cache, work, failing_with(AssertionError("a file was read again")))
    data = read_data(source, size=size)
    assert np.array_equal(data.x, np.load(filled.file))
    assert cached_files(tmp_path / "photos") == before


def test_images_that_have_no_label_at_all_can_be_decoded(tmp_path: Path) -> None:
    folder = KINDS["class folders"](tmp_path / "photos") / "ant"
    assert fill_cache(folder).num_images == 8


def test_only_files_with_new_content_are_given_to_the_function_that_decodes(tmp_path: Path) -> None:
    """The function may be one that sends files to other machines."""
    folder = KINDS["class folders"](tmp_path / "photos")
    fill_cache(folder)
    (folder / "bee" / "new.png").write_bytes((folder / "ant" / "00.png").read_bytes())
    (folder / "bee" / "02.bmp").write_bytes((folder / "unlabeled" / "08.bmp").read_bytes()[:-1] + b"\1")
    given: list[list[str]] = []

    def noting(work, paths, /):  # type: ignore[no-untyped-def]
        given.append(list(paths))
        return image_cache.in_parallel(work, given[-1])

    load_all_images(folder, map_files=noting)
    assert given == [["bee/02.bmp", "bee/new.png"], ["bee/02.bmp"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("table.csv", "weight,label\n1,ant\n2,\n", "is a table, which has no image files to decode; name a folder"),
        ("arrays.npz", "", "is an .npz file, which has no image files to decode"),
        ("notes.doc", "", "is none of"),
    ],
)
def test_data_without_image_files_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        fill_cache(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_missing_or_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no data at .*absent; check the path"):
        fill_cache(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="holds no images"):
        fill_cache(tmp_path)
    assert list(tmp_path.iterdir()) == []
