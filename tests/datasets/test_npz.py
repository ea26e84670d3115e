from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnar.datasets import npz

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 3, 8, 9), np.uint8)
TABLE = RNG.normal(size=(6, 4))
LABELS = np.array([0, 1, 2, 0, 1, 2])


def write(path: Path, **arrays: Any) -> Path:
    table = {"x_train": TABLE, "y_train": LABELS, "x_test": TABLE[:2], "y_test": LABELS[:2]}
    np.savez(path / "own.npz", **(table | arrays))
    return path / "own.npz"


def test_a_table_is_read_as_float32_with_its_moments(tmp_path: Path) -> None:
    data = npz(write(tmp_path))
    assert not data.is_image
    assert data.train_x.dtype == torch.float32
    np.testing.assert_allclose(data.train_x, TABLE, rtol=1e-6)
    np.testing.assert_allclose(data.mean, TABLE.mean(axis=0), rtol=1e-5)
    assert data.train_y.tolist() == LABELS.tolist()
    assert data.test_y.tolist() == LABELS[:2].tolist()
    assert data.class_names == ("0", "1", "2")


@pytest.mark.parametrize("images", [IMAGES, IMAGES.transpose(0, 2, 3, 1)], ids=["channels first", "channels last"])
def test_colour_images_become_channels_first(tmp_path: Path, images: np.ndarray) -> None:
    data = npz(write(tmp_path, x_train=images, x_test=images[:2]))
    assert data.is_image
    assert data.train_x.is_contiguous()
    assert np.array_equal(data.train_x, IMAGES)
    assert np.array_equal(data.test_x, IMAGES[:2])


def test_grey_images_get_a_channel(tmp_path: Path) -> None:
    data = npz(write(tmp_path, x_train=IMAGES[:, 0], x_test=IMAGES[:2, 0]))
    assert np.array_equal(data.train_x, IMAGES[:, :1])


def test_class_names_are_kept_even_of_a_class_without_samples(tmp_path: Path) -> None:
    names = ("cat", "dog", "emu", "yak")
    assert npz(write(tmp_path, class_names=np.array(names))).class_names == names


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y_train": LABELS[:5]}, "x_train has 6 rows and y_train has 5"),
        ({"y_test": LABELS[:1]}, "x_test has 2 rows and y_test has 1"),
        ({"y_train": np.array([0, 1, 2, -1, 1, 2])}, r"y_train\[3\] is -1"),
        ({"y_train": np.array([0, 1, np.nan, 0, 1, 2])}, r"y_train\[2\] is nan"),
        ({"y_test": np.array([0, 3])}, r"y_test\[1\] is 3; .*0 to 2"),
        ({"class_names": np.array(["cat", "dog"])}, r"y_train\[2\] is 2; .*0 to 1"),
        ({"x_train": np.where(np.eye(6, 4) * [0, 0, 1, 0], np.inf, TABLE)}, r"x_train\[2, 2\] is inf"),
        ({"y_train": np.array([0, 2**31])}, r"y_train has the label 2147483648, but .*; number the classes 0, 1, 2"),
        ({"x_test": np.full((6, 4), -1e300)}, r"x_test\[0, 0\] is -1e\+300, too large for float32 .*; scale"),
        ({"x_test": TABLE[:2, :3]}, r"\(4,\) in x_train and \(3,\) in x_test"),
        ({"x_train": IMAGES / 255}, "x_train has type float64; give images as uint8"),
        ({"x_train": np.zeros((6, 8, 9, 7), np.uint8)}, r"x_train has shape \(6, 8, 9, 7\)"),
        ({"x_train": np.zeros((6, 8, 9, 4), np.uint8)}, r"x_train has shape \(6, 8, 9, 4\); .*c in \(1, 3\)"),
        ({"x_train": np.zeros((6, 2, 8, 9), np.uint8)}, r"x_train has shape \(6, 2, 8, 9\); .*c in \(1, 3\)"),
        ({"x_train": np.full((6, 4), "a")}, "x_train has type <U1; give a table of numbers"),
        ({"x_test": TABLE[:0], "y_test": LABELS[:0]}, "x_test has no rows"),
    ],
)
def test_bad_arrays_are_named_with_the_first_bad_row(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        npz(write(tmp_path, **arrays))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=TABLE, y_train=LABELS, x_test=TABLE)
    with pytest.raises(ValueError, match="has no y_test"):
        npz(tmp_path / "own.npz")


def test_object_arrays_are_not_unpickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"own\.npz is not a complete .npz file of plain arrays"):
        npz(write(tmp_path, class_names=np.array([{}, {}, {}])))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"own\.npz is not a complete"):
        npz(path)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x93NUMPY"])
def test_another_kind_of_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.npz is not a complete") as refused:
        npz(tmp_path / "own.npz")
    assert "pickle" not in str(refused.value)  # numpy recommends to unpickle a file that it does not know


def test_a_missing_file_names_the_option(tmp_path: Path) -> None:
    for root in (None, tmp_path / "absent.npz", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"but {root} is not a file; .*--data"):
            npz(root)
