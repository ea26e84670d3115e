import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from mnar.datasets import mnist
from mnar.datasets.mnist import FILES

RNG = np.random.default_rng(0)
IMAGES = {"train": RNG.integers(0, 256, (7, 28, 28), np.uint8), "t10k": RNG.integers(0, 256, (3, 28, 28), np.uint8)}
LABELS = {"train": RNG.integers(0, 10, 7, np.uint8), "t10k": RNG.integers(0, 10, 3, np.uint8)}


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}i", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write(folder: Path, *, gzipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        for name, values in ((f"{part}-images-idx3-ubyte", IMAGES[part]), (f"{part}-labels-idx1-ubyte", LABELS[part])):
            if gzipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
            else:
                (folder / name).write_bytes(idx(values))


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("folder", ["MNIST/raw", ""])
def test_idx_files_give_back_what_was_written(tmp_path: Path, folder: str, gzipped: bool) -> None:
    write(tmp_path / folder, gzipped=gzipped)
    data = mnist(tmp_path)
    assert np.array_equal(data.train_x, IMAGES["train"][:, None])
    assert np.array_equal(data.test_x, IMAGES["t10k"][:, None])
    assert data.train_y.tolist() == LABELS["train"].tolist()
    assert data.test_y.tolist() == LABELS["t10k"].tolist()
    assert data.train_y.dtype == torch.int64
    np.testing.assert_allclose(data.mean, IMAGES["train"].mean() / 255)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [2, 6, -1])
def test_a_short_file_is_named(tmp_path: Path, name: str, keep: int) -> None:
    write(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=name):
        mnist(tmp_path)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, gzipped=True)
    path = tmp_path / f"{FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"{FILES[0]}\.gz is damaged"):
        mnist(tmp_path)


def test_labels_in_place_of_images_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / FILES[0]).write_bytes((tmp_path / FILES[1]).read_bytes())
    with pytest.raises(ValueError, match=f"{FILES[0]} is not an idx file of bytes with 3 axes"):
        mnist(tmp_path)


def test_images_without_their_labels_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / FILES[1]).write_bytes(idx(LABELS["t10k"]))
    with pytest.raises(ValueError, match=f"has 7 images and .*{FILES[1]} 3 labels"):
        mnist(tmp_path)


def test_missing_files_name_layout_and_option(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)MNIST/raw/ with train-images.*--data.*t10k-labels"):
        mnist(tmp_path)
