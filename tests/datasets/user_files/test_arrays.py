from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnar.datasets.user_files.arrays import labels_of, read_arrays, tensor_of
from mnar.datasets.user_files.partly_labeled import Table

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 3, 8, 9), np.uint8)
FEATURES = RNG.normal(size=(6, 4))
LABELS = np.array([0, 1, 2, -1, 1, -1])
NAN = float("nan")


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path / "own.npz", **({"x": FEATURES, "y": LABELS} | arrays))
    return path / "own.npz"


def test_features_and_labels_are_read_with_minus_one_as_no_label(tmp_path: Path) -> None:
    data = read_arrays(write(tmp_path))
    assert data.kind == "features"
    assert isinstance(data.x, np.ndarray)
    assert data.x.dtype == np.float32
    np.testing.assert_allclose(data.x, FEATURES, rtol=1e-6)
    assert data.y.tolist() == LABELS.tolist()
    assert data.class_names == ("0", "1", "2")
    assert list(data.row_names)[:2] == ["row 1", "row 2"]


def test_samples_may_be_called_capital_x_as_in_scikit_learn(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", X=FEATURES, y=LABELS, classes=np.array(["a", "b", "c", "d"]))
    data = read_arrays(tmp_path / "own.npz")
    np.testing.assert_allclose(data.x, FEATURES, rtol=1e-6)  # type: ignore[arg-type]
    assert data.class_names == ("a", "b", "c", "d"), "d is a class, although no sample has this label"
    assert data.y.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("images", "expected"),
    [(IMAGES, IMAGES), (IMAGES.transpose(0, 2, 3, 1), IMAGES), (IMAGES[:, 0], IMAGES[:, :1])],
    ids=["channels first", "channels last", "grey"],
)
def test_images_become_channels_first(tmp_path: Path, images: np.ndarray, expected: np.ndarray) -> None:
    data = read_arrays(write(tmp_path, x=images))
    assert data.kind == "images"
    assert np.array_equal(data.x, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("y", "class_names"),
    [
        (np.array([0, 1, 2, -1, 1, -1]), ("0", "1", "2")),
        (np.array([0, 1, 2, NAN, 1, -1.0]), ("0", "1", "2")),
        (np.array([0, 1, 2, 255, 1, 255], np.uint8), ("0", "1", "2", "255")),
        ([0, 1, 2, None, 1, NAN], ("0", "1", "2")),
        (["cat", "dog", "emu", "", "dog", "?"], ("cat", "dog", "emu")),
        (["cat", "dog", "emu", None, "dog", NAN], ("cat", "dog", "emu")),
        (np.array(["cat", "dog", "emu", "nan", "dog", "-1"]), ("cat", "dog", "emu")),
        (np.array([7, 20, 100, -1, 20, -1]), ("7", "20", "100")),
        (np.array([0.5, 1.5, 2, -1, 1.5, NAN]), ("0.5", "1.5", "2")),
    ],
    ids=["whole", "NaN", "unsigned", "None", "strings", "strings and None", "text array", "gaps", "fractions"],
)
def test_every_way_to_leave_a_label_out(y: Any, class_names: tuple[str, ...]) -> None:
    codes, names, _ = labels_of(np.asarray(y), "y")
    unlabeled = -1 if "255" not in class_names else 3
    assert codes.tolist() == [0, 1, 2, unlabeled, 1, unlabeled]
    assert names == class_names


@pytest.mark.parametrize(
    ("y", "classes", "expected"),
    [
        (["ant", "bee", "todo", "", "ant", "bee"], None, [0, 1, -1, -1, 0, 1]),
        (np.array([0, 1, 255, 1, 0, 0], np.uint8), None, [0, 1, -1, 1, 0, 0]),
        ([0, 1, 255, -1, 0, 0], ["ant", "bee"], [0, 1, -1, -1, 0, 0]),
        ([1, 2, 0, -1, 1, 1], ["todo", "ant", "bee"], [0, 1, -1, -1, 0, 0]),
    ],
    ids=["a text", "a number", "a number beside named classes", "a named class"],
)
def test_the_user_can_name_further_values_that_mean_no_label(
    tmp_path: Path, y: Any, classes: list[str] | None, expected: list[int]
) -> None:
    path = write(tmp_path, y=y, **({} if classes is None else {"classes": classes}))
    data = read_arrays(path, unlabeled=["todo", "255"])
    assert data.y.tolist() == expected
    assert data.class_names == (("0", "1") if isinstance(y, np.ndarray) else ("ant", "bee"))


def test_numbers_count_the_classes_that_are_named_and_texts_name_them() -> None:
    names = ("emu", "cat", "dog")
    assert labels_of(np.array([2, 0, None]), "y", names)[0].tolist() == [2, 0, -1]
    assert labels_of(np.array(["dog", "emu", None]), "y", names)[0].tolist() == [2, 0, -1]


def test_features_with_missing_values_become_a_table_of_the_same_numbers(tmp_path: Path) -> None:
    with_missing = np.where(np.eye(6, 4), NAN, FEATURES)
    data = read_arrays(write(tmp_path, x=with_missing))
    assert isinstance(data.x, Table)
    np.testing.assert_array_equal(data.x.numeric, with_missing)
    assert data.x.numeric_names == ("x0", "x1", "x2", "x3")
    assert data.x.categorical.shape == (6, 0)
    assert len(data.x.rows(np.array([1, 2]))) == 2


@pytest.mark.filterwarnings("error")
def test_a_tensor_of_a_read_only_map_is_the_map_itself_without_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tensor = tensor_of(mapped)
    assert tensor.data_ptr() == mapped.ctypes.data
    assert torch.equal(tensor, torch.from_numpy(IMAGES))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": LABELS[:5]}, "x has 6 rows and .*y has 5; give one label per row"),
        ({"y": np.eye(6)}, r"y has shape \(6, 6\); give one label per row"),
        ({"y": np.full(6, -1)}, "y: no row has a label"),
        ({"y": np.array([0, 0, -1, 0, 0, 0])}, "y: every label is '0'"),
        ({"class_names": np.array(["cat", "dog"])}, r"y\[2\] is 2; .*0 to 1"),
        ({"class_names": np.array(["cat", "dog", "cat"])}, "class 'cat' is named 2 times"),
        ({"class_names": np.array(["a", "b"]), "classes": np.array(["a", "b"])}, "both class_names and classes"),
        ({"X": FEATURES}, "has both x and X; remove one of them"),
        ({"x": IMAGES / 255}, "x has type float64; give images as uint8"),
        ({"x": np.zeros((6, 8, 9, 4), np.uint8)}, r"x has shape \(6, 8, 9, 4\)"),
        ({"x": np.full((6, 4), "a")}, "x has type <U1; give a table of numbers"),
        ({"x": FEATURES[:0], "y": LABELS[:0]}, "x has no rows"),
        ({"x": np.float64(3)}, "x has no rows"),
        ({"y": np.array([{}] * 6)}, "not a complete .npz file of plain arrays"),
    ],
)
def test_bad_arrays_are_named_with_their_file(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"own\.npz.*{message}"):
        read_arrays(write(tmp_path, **arrays))


def test_a_text_that_names_no_class_is_shown() -> None:
    with pytest.raises(ValueError, match="y: label 'yak' is not one of cat, dog"):
        labels_of(np.array(["cat", "yak", ""]), "y", ("cat", "dog"))


@pytest.mark.parametrize(("missing", "present"), [("x", "y"), ("y", "x")])
def test_a_missing_array_is_named_with_the_arrays_of_the_file(tmp_path: Path, missing: str, present: str) -> None:
    np.savez(tmp_path / "own.npz", **{present: FEATURES})
    with pytest.raises(ValueError, match=rf"own\.npz has no {missing}, only {present}; call the samples x"):
        read_arrays(tmp_path / "own.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"own\.npz is not a file"):
        read_arrays(tmp_path / "own.npz")


def test_infinite_features_are_missing_and_large_ones_are_kept_in_float64_with_a_note(tmp_path: Path) -> None:
    x = np.array([[1.0, 2e300], [np.inf, 3.0], [3.0, 4.0]])
    np.savez(tmp_path / "own.npz", x=x, y=np.array([0, 1, -1]))
    data = read_arrays(tmp_path / "own.npz")
    assert isinstance(data.x, Table)
    np.testing.assert_array_equal(data.x.numeric, [[1, 2e300], [NAN, 3], [3, 4]])
    assert any("x[:, 0] has 1 values that are infinite" in note for note in data.notes)
    assert any("x[:, 1] has numbers as large as 2.0e+300" in note for note in data.notes)


def test_rows_are_numbered_from_one_and_ids_are_carried_along(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((3, 2)), y=np.array([0, 1, -1]), nr=np.array([9, 8, 9]))
    data = read_arrays(tmp_path / "own.npz", id="nr")
    assert list(data.row_numbers) == [1, 2, 3]
    assert data.ids == ["9", "8", "9"]
    assert any("2 rows share their id with another row, e.g. '9' in 2 rows" in note for note in data.notes)
    with pytest.raises(ValueError, match=r"has no array 'name' of ids, only nr, x, y"):
        read_arrays(tmp_path / "own.npz", id="name")
    np.savez(tmp_path / "own.npz", x=np.ones((3, 2)), y=np.array([0, 1, -1]), nr=np.array([9, 8]))
    with pytest.raises(ValueError, match="x has 3 rows and nr has 2; give one id per row"):
        read_arrays(tmp_path / "own.npz", id="nr")
