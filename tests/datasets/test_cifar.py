import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnar.datasets import cifar10, cifar100
from mnar.datasets.cifar_pickle import read_pickle

RNG = np.random.default_rng(0)
REAL = Path(os.environ.get("MNAR_DATA", "absent"))


def write_batch(path: Path, labels_key: str, num_images: int, num_classes: int) -> tuple[np.ndarray, list[int]]:
    data = RNG.integers(0, 256, (num_images, 3072), np.uint8)
    labels = RNG.integers(0, num_classes, num_images).tolist()
    path.write_bytes(pickle.dumps({"data": data, labels_key: labels, "filenames": ["a.png"]}, protocol=4))
    return data.reshape(-1, 3, 32, 32), labels


def write_cifar10(folder: Path) -> tuple[np.ndarray, list[int]]:
    folder.mkdir(exist_ok=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batches = [write_batch(folder / name, "labels", 4, 10) for name in names]
    return np.concatenate([data for data, _ in batches]), [label for _, labels in batches for label in labels]


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", ""])
def test_five_batches_train_and_the_sixth_tests(tmp_path: Path, folder: str) -> None:
    images, labels = write_cifar10(tmp_path / folder)
    data = cifar10(tmp_path)
    assert np.array_equal(torch.cat([data.train_x, data.test_x]), images)
    assert torch.cat([data.train_y, data.test_y]).tolist() == labels
    assert len(data.test_x) == 4
    assert data.train_x.is_contiguous()
    assert data.class_names[3] == "cat"
    assert data.mean == (125.3 / 255, 123.0 / 255, 113.9 / 255)


def test_cifar100_has_fine_labels_and_100_names(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    images, labels = write_batch(folder / "train", "fine_labels", 5, 100)
    write_batch(folder / "test", "fine_labels", 2, 100)
    data = cifar100(tmp_path)
    assert np.array_equal(data.train_x, images)
    assert data.train_y.tolist() == labels
    assert len(data.test_y) == 2
    assert len(set(data.class_names)) == 100
    assert (data.class_names[0], data.class_names[99]) == ("apple", "worm")


def test_parts_join_to_the_data_set_of_the_batches(tmp_path: Path) -> None:
    images, labels = write_cifar10(tmp_path / "cifar-10-batches-py")
    moved = tmp_path / "moved"
    moved.mkdir()
    np.savez_compressed(moved / "cifar10-part2.npz", x=images[:11], y=labels[:11])
    np.savez_compressed(
        moved / "cifar10-part10.npz", x=images[11:20], y=labels[11:20], test_x=images[20:], test_y=labels[20:]
    )
    whole, parts = cifar10(tmp_path), cifar10(moved)
    for from_batches, from_parts in zip(whole, parts, strict=True):
        if isinstance(from_batches, torch.Tensor):
            assert torch.equal(from_batches, from_parts)
        else:
            assert from_batches == from_parts


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3, 32, 32), np.uint8), "y": [0, 1]}, "1 training and 0 test parts"),
        ({"x": np.zeros((2, 3, 32, 32), np.uint8)}, r"cifar10-part1\.npz has no 'y'"),
        ({"x": np.zeros((2, 3, 32, 32), np.uint8), "y": [0]}, r"cifar10-part1\.npz has 2 images and 1 labels"),
        ({"x": np.zeros((2, 32, 32, 3), np.uint8), "y": [0, 1]}, r"x has type uint8 and shape \(2, 32, 32, 3\)"),
        ({"x": np.zeros((2, 3, 32, 32)), "y": [0, 1]}, "x has type float64"),
        ({"x": np.zeros((2, 3, 32, 32), np.uint8), "y": [0, 10]}, r"y\[1\] is 10; .*0 to 9"),
    ],
)
def test_bad_parts_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "cifar10-part1.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        cifar10(tmp_path)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    write_cifar10(tmp_path)
    attack = pickle.dumps({"data": Malicious(tmp_path / "attacked"), "labels": []}, protocol)
    (tmp_path / "data_batch_2").write_bytes(attack)
    with pytest.raises(ValueError, match=r"data_batch_2 is not a complete CIFAR file \(the pickle asks for \w+\.mkdir"):
        cifar10(tmp_path)
    assert not (tmp_path / "attacked").exists()
    pickle.loads(attack)
    assert (tmp_path / "attacked").exists()  # so the attack would have worked


@pytest.mark.parametrize(
    "name", ["builtins eval", "numpy load", "numpy._core.multiarray _reconstruct.__init__", "numpy ndarray.tofile"]
)
def test_only_the_names_that_a_byte_array_needs_are_looked_up(tmp_path: Path, name: str) -> None:
    module, attribute = name.split()
    (tmp_path / "batch").write_bytes(b"\x80\x02c" + f"{module}\n{attribute}\n".encode() + b".")
    with pytest.raises(ValueError, match=f"the pickle asks for {module}.{attribute}"):
        read_pickle(tmp_path / "batch")


@pytest.mark.parametrize("array", [np.zeros(3), np.array([print], dtype=object), np.zeros(2, "u1,u1")])
def test_arrays_of_anything_but_bytes_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": array}, protocol=4))
    with pytest.raises(ValueError, match="batch is not a complete CIFAR file"):
        read_pickle(tmp_path / "batch")


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    content = bytes((0, 127, 128, 255))
    (tmp_path / "batch").write_bytes(
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x04" + content + b"tbU\x06labels](K\x01K\x02eu."
    )
    batch = read_pickle(tmp_path / "batch")
    assert batch["data"].tolist() == [[0, 127], [128, 255]]
    assert batch["labels"] == [1, 2]


@pytest.mark.parametrize("keep", [0, 1, 100, 5000, -1])
def test_a_short_batch_is_named(tmp_path: Path, keep: int) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="data_batch_3"):
        cifar10(tmp_path)


def test_a_batch_without_labels_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    write_batch(tmp_path / "data_batch_4", "coarse_labels", 4, 10)
    with pytest.raises(ValueError, match="data_batch_4 has no 'labels'"):
        cifar10(tmp_path)


def test_missing_batches_name_layout_paths_and_option(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    lost = tmp_path / "cifar-10-batches-py" / "data_batch_5"
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=rf"(?s)cifar-10-batches-py/ with data_batch_1.*--data.*{lost}"):
        cifar10(tmp_path)


@pytest.mark.skipif(not (REAL / "cifar-10-batches-py").is_dir(), reason="MNAR_DATA names no folder with CIFAR-10")
def test_the_real_cifar10_has_its_known_sizes_names_and_moments() -> None:
    data = cifar10(REAL)
    assert data.train_x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(data.train_y).tolist() == [5000] * 10
    assert torch.bincount(data.test_y).tolist() == [1000] * 10
    assert list(data.class_names) == read_pickle(REAL / "cifar-10-batches-py" / "batches.meta")["label_names"]
    means = data.train_x.double().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor(data.mean, dtype=torch.float64), atol=1e-3, rtol=0)
