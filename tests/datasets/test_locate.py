from pathlib import Path

import pytest

from mnar.datasets.locate import Layout, locate

LAYOUT = Layout("inner", ("a", "part*.npz"))


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("inside", ["inner", ""])
def test_files_are_found_under_the_root_or_in_it_with_part_2_before_part_10(tmp_path: Path, inside: str) -> None:
    touch(tmp_path / inside, "part10.npz", "part2.npz", "a")
    assert [path.name for path in locate("toy", tmp_path, LAYOUT, how_to_get="bake it")] == [
        "a",
        "part2.npz",
        "part10.npz",
    ]


def test_an_incomplete_layout_is_passed_over_for_a_complete_one(tmp_path: Path) -> None:
    touch(tmp_path / "inner", "a", "b")
    assert locate("toy", tmp_path, LAYOUT, Layout("inner", ("b",)), how_to_get="bake it") == [tmp_path / "inner" / "b"]


def test_no_root_means_the_data_folder_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    touch(tmp_path / "data", "a", "part1.npz")
    assert locate("toy", None, LAYOUT, how_to_get="bake it") == [Path("data/a"), Path("data/part1.npz")]


def test_missing_data_is_an_error_with_layout_option_how_to_get_the_files_and_every_path(tmp_path: Path) -> None:
    touch(tmp_path / "inner", "a")
    with pytest.raises(FileNotFoundError) as caught:
        locate("toy", tmp_path, LAYOUT, how_to_get="bake it")
    message = str(caught.value)
    assert "data set 'toy'" in message
    assert "inner/ with a, part*.npz" in message
    assert "--data" in message
    assert "If you do not have the files, bake it." in message
    missing = [tmp_path / "inner" / "part*.npz", tmp_path / "a", tmp_path / "part*.npz"]
    assert message.splitlines()[2:] == [f"  {path}" for path in missing]
