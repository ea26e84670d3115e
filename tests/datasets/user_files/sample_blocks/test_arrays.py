"""Blocks of arrays: the same samples as the whole array, from memory or from a file that is larger than the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mnar.datasets.user_files import PartlyLabeled
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import RowNames, Table
from mnar.datasets.user_files.sample_blocks import arrays, evenly_spread
from mnar.datasets.user_files.sample_blocks.arrays import ArrayBlocks, copied_rows, read_array_file
from mnar.datasets.user_files.sample_blocks.open_samples import blocks_of
from mnar.datasets.user_files.table_encoder import TableEncoder

IMAGES = ModelInputs((1, 4, 4), ("a", "b"))
NUMBERS = ModelInputs((3,), ("a", "b"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "ROWS_PER_BLOCK", 10)


@pytest.mark.parametrize("first_row", [0, 10, 20, 25])
def test_the_blocks_together_are_the_array(first_row: int) -> None:
    x = np.random.default_rng(0).normal(size=(25, 3)).astype(np.float32)
    blocks = list(ArrayBlocks(x, NUMBERS).blocks(first_row))
    assert [len(block.x) for block in blocks] == [10, 10, 5][first_row // 10 :][: -(-(25 - first_row) // 10)]
    if blocks:
        np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), x[first_row:])
        assert blocks[0].names[0] == f"row {first_row + 1}"
        assert blocks[-1].row_numbers[-1] == 25


def test_a_memory_mapped_file_gives_the_same_rows_as_the_array_in_memory(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (25, 4, 4), np.uint8)
    np.save(tmp_path / "x.npy", x)
    mapped = read_array_file(tmp_path / "x.npy", IMAGES)
    assert isinstance(mapped.x, np.memmap)
    for of_file, of_array in zip(mapped.blocks(10), ArrayBlocks(x, IMAGES).blocks(10), strict=True):
        np.testing.assert_array_equal(of_file.x, of_array.x)
    for rows in (np.arange(7, 25), np.array([3, 4, 9, 24])):
        np.testing.assert_array_equal(copied_rows(mapped.x, rows), x[rows])


def test_only_the_named_rows_are_read() -> None:
    x, rows = np.arange(75, dtype=np.float32).reshape(25, 3), np.array([1, 4, 5, 7, 9, 11, 12, 13, 20, 21, 24])
    samples = ArrayBlocks(x, NUMBERS, rows=rows, ids=[f"id{i}" for i in range(25)])
    blocks = list(samples.blocks())
    assert samples.num_rows == 11
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), x[rows])
    assert [name for block in blocks for name in block.names] == [f"row {row + 1}" for row in rows]
    assert blocks[1].ids == ["id24"]


def test_a_sample_is_spread_over_all_rows() -> None:
    x = np.repeat(np.arange(1000, dtype=np.float32)[:, None], 3, 1)
    found = evenly_spread(ArrayBlocks(x, NUMBERS), 100)[:, 0]
    assert len(found) == 100
    assert np.diff(found).max() == 10
    assert len(evenly_spread(ArrayBlocks(x[:7], NUMBERS), 100)) == 7


def test_blocks_of_read_data_have_their_names_numbers_and_ids() -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    data = PartlyLabeled(
        x, np.array([0, -1, 1, -1, -1]), ("a", "b"), RowNames("line", [2, 3, 5, 6, 7]), (), [1, 2, 4, 5, 6]
    )
    (block,) = blocks_of(data, np.array([1, 3, 4]), NUMBERS).blocks()
    assert list(block.names) == ["line 3", "line 6", "line 7"]
    assert block.row_numbers.tolist() == [2, 5, 6]
    np.testing.assert_array_equal(block.x, x[[1, 3, 4]])


def test_numbers_for_a_model_of_a_table_are_taken_by_position_and_encoded() -> None:
    x = np.random.default_rng(0).normal(5, 3, (40, 2))
    x[3, 1] = np.nan
    encoder = TableEncoder.fit(Table.of_numbers(x))
    like = ModelInputs((len(encoder.feature_names),), ("a", "b"), encoder)
    (block,) = ArrayBlocks(x[:5], like).blocks()
    np.testing.assert_allclose(block.x, encoder.transform(Table.of_numbers(x))[:5])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a complete .npy file"),
        (b"\x93NUMPY junk", "not a complete .npy file"),
        (b"junk", "not a complete .npy file"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        read_array_file(tmp_path / "x.npy", NUMBERS)
    assert "pickle" not in str(refused.value)  # numpy recommends to unpickle a file that it does not know


def test_a_file_of_objects_is_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{1: 2}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"not a complete \.npy file"):
        read_array_file(tmp_path / "x.npy", NUMBERS)


def test_an_npz_file_without_samples_and_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.zeros(3))
    with pytest.raises(ValueError, match="call the samples x"):
        read_array_file(tmp_path / "a.npz", NUMBERS)
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 3)), name=np.array(["u", "v"]))
    with pytest.raises(ValueError, match="one id per row"):
        read_array_file(tmp_path / "b.npz", NUMBERS, id="name")
    with pytest.raises(ValueError, match="no array 'key' of ids"):
        read_array_file(tmp_path / "b.npz", NUMBERS, id="key")
