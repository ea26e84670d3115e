"""The shards of a folder together are one large file."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mnar.datasets.user_files import read_data
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.sample_blocks import SampleBlocks, arrays, open_samples, shards, tables
from mnar.datasets.user_files.sample_blocks.shards import ShardBlocks
from mnar.datasets.user_files.table_encoder import TableEncoder

ROWS = 4  # rows per block in these tests
CUTS = (0, 11, 12, 20, 30)  # the shards begin at these rows of the file
HEADER = "weight,colour,nr"
LINES = [f"{i}.5,{('red', 'blue', 'mauve')[i % 3]},id{i}" for i in range(30)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_PER_BLOCK", ROWS)
    monkeypatch.setattr(arrays, "ROWS_PER_BLOCK", ROWS)


@pytest.fixture
def like(tmp_path: Path) -> ModelInputs:
    path = tmp_path / "training.csv"
    path.write_text(
        "\n".join(["weight,colour,label", *(f"{i},{('red', 'blue')[i % 2]},{'ab'[i % 2]}" for i in range(8))])
    )
    data = read_data(path)
    assert isinstance(data.x, Table)
    encoder = TableEncoder.fit(data.x)
    return ModelInputs((len(encoder.feature_names),), data.class_names, encoder)


NUMBERS = ModelInputs((3,), ("a", "b"))


def write_csv(path: Path, rows: slice) -> None:
    path.with_suffix(".csv").write_text("\n".join([HEADER, *LINES[rows]]) + "\n")


def write_parquet(path: Path, rows: slice) -> None:
    write_csv(path, rows)
    csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(csv.read_csv(path.with_suffix(".csv")), path.with_suffix(".parquet"), row_group_size=3)
    path.with_suffix(".csv").unlink()


def write_npy(path: Path, rows: slice) -> None:
    np.save(path.with_suffix(".npy"), np.arange(90, dtype=np.float32).reshape(30, 3)[rows])


def write_npz(path: Path, rows: slice) -> None:
    np.savez(path.with_suffix(".npz"), x=np.arange(90, dtype=np.float32).reshape(30, 3)[rows])


WRITERS = {"csv": write_csv, "parquet": write_parquet, "npy": write_npy, "npz": write_npz}


def file_and_folder(tmp_path: Path, kind: str) -> tuple[Path, Path]:
    """Write all rows as one file, and cut into shards."""
    write: Callable[[Path, slice], None] = WRITERS[kind]
    folder = tmp_path / "pool"
    folder.mkdir()
    write(tmp_path / "whole", slice(None))
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        write(folder / f"part-{number}", slice(start, stop))
    (folder / "_SUCCESS").touch()
    (folder / ".hidden.csv").write_text("no shard")
    return tmp_path / f"whole.{kind}", folder


def opened(source: Path, kind: str, like: ModelInputs) -> SampleBlocks:
    is_table = kind in ("csv", "parquet")
    return open_samples(source, like if is_table else NUMBERS, id="nr" if is_table else None)


@pytest.mark.parametrize("kind", WRITERS)
def test_the_blocks_of_all_shards_are_the_rows_of_one_file(kind: str, tmp_path: Path, like: ModelInputs) -> None:
    whole_file, folder = file_and_folder(tmp_path, kind)
    whole, sharded = list(opened(whole_file, kind, like).blocks()), opened(folder, kind, like)
    assert isinstance(sharded, ShardBlocks)
    assert sharded.num_rows == 30
    x, numbers = np.concatenate([block.x for block in whole]), np.arange(1, 31)
    ends = [0]
    for block in sharded.blocks():
        rows = slice(ends[-1], ends[-1] + len(block.x))
        np.testing.assert_array_equal(block.x, x[rows])
        np.testing.assert_array_equal(block.row_numbers, numbers[rows])
        assert block.ids is None or block.ids == [f"id{i}" for i in range(30)][rows]
        ends.append(rows.stop)
    assert ends[-1] == 30
    for end in ends:  # the reading may continue after each block
        rest = [block.row_numbers for block in opened(folder, kind, like).blocks(end)]
        np.testing.assert_array_equal(np.concatenate([[], *rest]), numbers[end:])


@pytest.mark.parametrize("kind", WRITERS)
def test_every_nth_sample_of_all_shards_is_every_nth_row_of_one_file(
    kind: str, tmp_path: Path, like: ModelInputs
) -> None:
    whole_file, folder = file_and_folder(tmp_path, kind)
    whole, sharded = opened(whole_file, kind, like), opened(folder, kind, like)
    for every in (1, 2, 7, 13, 40):
        found = sharded.every_nth(every)
        np.testing.assert_array_equal(found, whole.every_nth(every))
        assert found.dtype == whole.every_nth(every).dtype
        assert len(found) == -(-30 // every)


def test_a_sample_is_named_by_its_shard_and_its_place_there(tmp_path: Path, like: ModelInputs) -> None:
    _, folder = file_and_folder(tmp_path, "csv")
    names = [name for block in opened(folder, "csv", like).blocks() for name in block.names]
    assert names[0] == "part-0.csv, line 2"
    assert names[11] == "part-1.csv, line 2"
    assert names[-1] == "part-3.csv, line 11"


def test_reading_goes_on_at_the_right_row_after_shards_with_empty_rows(tmp_path: Path, like: ModelInputs) -> None:
    _, folder = file_and_folder(tmp_path, "csv")
    for name in ("part-0.csv", "part-2.csv"):
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join([*lines[:3], ",,", ",,", *lines[3:]]) + "\n")
    sharded, end = opened(folder, "csv", like), 0
    straight = [(len(block.x), block.row_numbers.tolist()) for block in sharded.blocks()]
    assert sharded.num_rows == 30
    assert straight[0][1] == [1, 2, 5, 6], "the empty rows have numbers, too"
    for place, (num_rows, _) in enumerate(straight):
        rest = [(len(block.x), block.row_numbers.tolist()) for block in opened(folder, "csv", like).blocks(end)]
        assert rest == straight[place:]
        end += num_rows
    assert sum("rows are left out because every cell is empty" in note for note in sharded.notes) == 2


def test_of_many_notes_on_shards_only_a_few_are_kept(
    tmp_path: Path, like: ModelInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MOST_NOTES", 2)
    _, folder = file_and_folder(tmp_path, "csv")
    sharded = open_samples(folder, like)
    list(sharded.blocks())
    first, *others = sharded.notes
    assert "the model does not use these columns: nr" in first
    assert ["'mauve'" in note for note in others] == [True, True, False]
    assert others[-1] == "number of further notes on other shards: 2"


def test_a_shard_with_another_column_is_named_with_the_column(tmp_path: Path, like: ModelInputs) -> None:
    _, folder = file_and_folder(tmp_path, "csv")
    (folder / "part-2.csv").write_text("weight,colour,nr,size\n1,red,a,2\n")
    with pytest.raises(ValueError, match=r"part-2\.csv has the column 'size', but part-0\.csv does not; give all"):
        opened(folder, "csv", like)
    (folder / "part-2.csv").write_text("colour,nr,weight\nred,a,1\n")
    assert opened(folder, "csv", like).num_rows == 23, "the order of the columns does not matter"
    (folder / "part-2.csv").write_text("colour,nr\nred,a\n")
    with pytest.raises(ValueError, match=r"part-2\.csv has no column 'weight'"):
        opened(folder, "csv", like)
    (folder / "part-2.csv").unlink()
    (folder / "part-0.csv").write_text("weight,colour,nr,size\n1,red,a,2\n")
    with pytest.raises(ValueError, match=r"part-0\.csv has the column 'size', but part-1\.csv does not"):
        opened(folder, "csv", like)


def test_an_array_of_another_shape_is_named(tmp_path: Path, like: ModelInputs) -> None:
    _, folder = file_and_folder(tmp_path, "npy")
    np.save(folder / "part-1.npy", np.zeros((4, 5), np.float32))
    with pytest.raises(ValueError, match=r"part-1\.npy has samples of shape \(5,\), but the model takes 3 features"):
        opened(folder, "npy", like)


def test_shards_of_two_kinds_and_a_folder_without_shards_are_refused(tmp_path: Path, like: ModelInputs) -> None:
    _, folder = file_and_folder(tmp_path, "csv")
    (folder / "z.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"several kinds, e\.g\. part-0\.csv and z\.parquet; keep one kind"):
        opened(folder, "csv", like)
    (tmp_path / "empty").mkdir()
    for model in (like, NUMBERS):
        with pytest.raises(ValueError, match="empty is no data for this model"):
            open_samples(tmp_path / "empty", model)
