"""The blocks of a table together are what `read_data_like` reads from the whole file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnar.datasets.user_files import csv_arrow, csv_blocks, csv_columns, read_data, read_data_like
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.sample_blocks import evenly_spread, table_sources, tables
from mnar.datasets.user_files.sample_blocks.tables import TableBlocks
from mnar.datasets.user_files.table_encoder import TableEncoder

ROWS = 8  # rows per block in these tests
TRAINING = "weight,length,colour,size,label\n" + "".join(
    f"{i % 7}.5,{i % 5 if i % 9 else ''},{('red', 'blue', 'Åse')[i % 3]},{('s', 'm', '', 'l')[i % 4]},{'ab'[i % 2]}\n"
    for i in range(60)
)
COLOURS = ("red", "blue", "Åse", "mauve", "", "NA", " red ", "nan", "x y")


def many_rows(separator: str = ",", end: str = "\n", comma: str = ".") -> str:
    """Rows with missing cells, unknown categories and categories that are numbers, the columns in another order."""
    lines = [separator.join(["nr", "size", "length", "colour", "weight"])]
    for i in range(45):
        weight = ("", "NA", "inf", f"{i}{comma}25", "1e3", "?")[i % 6]
        lines.append(separator.join([f"{i:03}", ("s", "m", "7", "007")[i % 4], str(i), COLOURS[i % 9], weight]))
    return end.join(lines) + end


FILES = {
    "plain": many_rows(),
    "no last line end": many_rows().rstrip("\n"),
    "Windows line ends": many_rows(end="\r\n"),
    "old line ends": many_rows(end="\r"),
    "UTF-8 mark": "\ufeff" + many_rows(),
    "semicolons and decimal commas": many_rows(";", comma=","),
    "tabs": many_rows("\t"),
    "quotes": many_rows().replace("blue", '"blue"').replace("001", '"0, ""1"""'),
    "line breaks in cells": many_rows().replace("003", '"a\nb"'),
    "blank lines": "\n" + many_rows().replace("\n007", "\n\n007").replace("\n012", "\n\n\n012"),
    "rows of empty cells": many_rows().replace("\n009", "\n,,,,\n009").replace("\n010", "\n , ,,,\n010") + ",,,,\n",
    "a line of spaces": many_rows().replace("\n030", "\n   \n030"),
    "numbers in an unusual spelling": many_rows().replace("1e3", " 1E+3 ").replace(",?", ", nA "),
}
BYTES = {"UTF-16": many_rows().encode("utf-16"), "Windows-1252": many_rows().encode("cp1252")}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_PER_BLOCK", ROWS)
    monkeypatch.setattr(table_sources, "ROWS_PER_PART", 11)
    monkeypatch.setattr(csv_blocks, "ROWS_PER_BLOCK", 7)
    monkeypatch.setattr(csv_arrow, "BYTES_PER_BLOCK", 200)


@pytest.fixture(params=["csv module", "pyarrow"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(csv_columns, "USE_ARROW", request.param == "pyarrow")


@pytest.fixture
def like(tmp_path: Path) -> ModelInputs:
    data = read_data(write(tmp_path, TRAINING, "training.csv"))
    assert isinstance(data.x, Table)
    encoder = TableEncoder.fit(data.x)
    return ModelInputs((len(encoder.feature_names),), data.class_names, encoder)


def write(folder: Path, content: str | bytes, name: str = "new.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_whole(path: Path, like: ModelInputs, **options: Any) -> Any:
    assert like.encoder is not None
    encoding = like.encoder.to_dict()
    return read_data_like(
        path, input_shape=like.input_shape, class_names=like.class_names, encoding=encoding, **options
    )


def assert_blocks_are(whole: Any, table: TableBlocks, first_row: int = 0) -> None:
    blocks = list(table.blocks(first_row))
    assert all(len(block.x) == ROWS for block in blocks[:-1])
    assert all(0 < len(block.x) <= ROWS for block in blocks)
    rows = slice(first_row, None)
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), whole.x[rows])
    assert [name for block in blocks for name in block.names] == list(whole.row_names)[rows]
    assert [n for block in blocks for n in block.row_numbers.tolist()] == list(whole.row_numbers)[rows]
    if whole.ids is not None:
        assert [id for block in blocks for id in block.ids or []] == whole.ids[rows]
    assert table.num_rows == len(whole.x)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("content", [*FILES.values(), *BYTES.values()], ids=[*FILES, *BYTES])
def test_the_blocks_of_a_csv_file_are_the_whole_file(tmp_path: Path, like: ModelInputs, content: str | bytes) -> None:
    path = write(tmp_path, content)
    whole = read_whole(path, like, id="nr")
    assert len(whole.x) == 45
    for first_row in (0, ROWS, 3 * ROWS, 5 * ROWS):
        assert_blocks_are(whole, TableBlocks(path, like, id="nr"), first_row)
    assert list(TableBlocks(path, like).blocks(45)) == []


def test_the_blocks_of_a_parquet_file_are_the_whole_file(tmp_path: Path, like: ModelInputs) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    path = tmp_path / "new.parquet"
    parquet.write_table(csv.read_csv(write(tmp_path, many_rows())), path, row_group_size=13)
    for first_row in range(0, 45, ROWS):
        assert_blocks_are(read_whole(path, like, id="nr"), TableBlocks(path, like, id="nr"), first_row)
    assert list(TableBlocks(path, like).blocks(45)) == []


def test_row_groups_of_a_parquet_file_before_the_first_row_are_not_read(tmp_path: Path, like: ModelInputs) -> None:
    """The first row group is damaged: reading it would be an error."""
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    path = tmp_path / "new.parquet"
    parquet.write_table(csv.read_csv(write(tmp_path, many_rows())), path, row_group_size=ROWS, compression="snappy")
    whole, content = read_whole(path, like), path.read_bytes()
    end = parquet.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    path.write_bytes(content[:4] + b"\xff" * (end - 4) + content[end:])
    with pytest.raises(ValueError, match="is not a complete parquet file"):
        list(TableBlocks(path, like).blocks())
    assert_blocks_are(whole, TableBlocks(path, like), ROWS)


@pytest.mark.parametrize("kind", ["dict", "pandas", "pyarrow"])
def test_the_blocks_of_a_frame_are_the_cells_of_the_file(tmp_path: Path, like: ModelInputs, kind: str) -> None:
    whole = read_whole(write(tmp_path, many_rows()), like).x
    cells = np.array([line.split(",") for line in many_rows().splitlines()])
    frame: Any = {name: column.tolist() for name, column in zip(cells[0], cells[1:].T, strict=True)}
    if kind == "pandas":
        frame = pytest.importorskip("pandas").DataFrame(frame, index=range(100, 145))
    if kind == "pyarrow":
        frame = pytest.importorskip("pyarrow").table(frame)
    blocks = list(TableBlocks(frame, like).blocks(ROWS))
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), whole[ROWS:])
    assert blocks[0].names[0] == f"row {ROWS}"  # Python counts from 0
    assert blocks[0].row_numbers[0] == ROWS + 1


def test_a_file_that_pyarrow_cannot_finish_is_finished_by_the_csv_module(tmp_path: Path, like: ModelInputs) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path, FILES["a line of spaces"])  # pyarrow refuses this line, when some blocks are already given
    table = TableBlocks(path, like, id="nr")
    with pytest.raises(csv_arrow.CannotRead):
        list(table.source.parts())
    assert_blocks_are(read_whole(path, like, id="nr"), table)
    assert any("'colour' has 10 rows with a category that the model does not know" in note for note in table.notes)


@pytest.mark.usefixtures("reader")
def test_notes_name_unused_columns_and_count_unknown_categories_and_missing_ids(
    tmp_path: Path, like: ModelInputs
) -> None:
    content = "a,label,b,c,weight,length,colour,size,nr\n" + "1,x,1,1,1,1,red,s,n1\n" * 20
    content += "1,x,1,1,1,1,mauve,xl, \n" * 3 + ",,,,,,,,\n"
    table = TableBlocks(write(tmp_path, content), like, ignore=["c"], id="nr")
    where = str(tmp_path / "new.csv")
    first = f"{where}: the model does not use these columns: a, b"
    assert table.notes == [first]
    for _ in range(2):  # a second pass does not repeat the notes
        list(table.blocks())
        assert table.notes == [
            first,
            f"{where}: 1 rows are left out because every cell is empty",
            f"{where}: column 'colour' has 3 rows with a category that the model does not know, e.g. 'mauve'; it "
            "counts as missing",
            f"{where}: column 'size' has 3 rows with a category that the model does not know, e.g. 'xl'; it counts as "
            "missing",
            f"{where}: 3 rows have no id; use the row number for them",
        ]


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("weight,size\n1,s\n", r"new\.csv has no column 'length', 'colour'; its columns are weight, size\. Check"),
        ("", r"new\.csv is empty; give a header line"),
        ("weight,length,colour,size\n", r"new\.csv has a header and no rows"),
        ("weight,length,colour,size\n,,,\n,,,\n", r"new\.csv has a header and no rows"),
        (
            "weight,length,colour,size\n" + "1,1,red,s\n" * 30 + "1,tall,red,s\n",
            r"new\.csv, line 32: 'length' is 'tall', not a number; correct the cell",
        ),
        ("weight,length,colour,size\n" + "1,1,red,s\n" * 30 + "1,2\n", r"new\.csv, line 32: 2 cells"),
        ('weight,length,colour,size\n1,1,"red,s\n', r"new\.csv, line 2: .*close the quotes"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_place_and_the_remedy(
    tmp_path: Path, like: ModelInputs, content: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(TableBlocks(write(tmp_path, content), like).blocks())


def test_the_sample_is_spread_over_the_file(tmp_path: Path, like: ModelInputs) -> None:
    path = write(tmp_path, many_rows())
    whole, table = read_whole(path, like).x, TableBlocks(path, like)
    for most, every in ((45, 1), (44, 2), (15, 3), (5, 9), (1, 45)):
        np.testing.assert_array_equal(evenly_spread(table, most), whole[::every])


def test_a_bad_frame_and_a_model_without_a_table_are_refused(like: ModelInputs) -> None:
    with pytest.raises(ValueError, match="the table has no column 'length', 'colour', 'size'; its columns are weight"):
        TableBlocks({"weight": [1]}, like)
    with pytest.raises(ValueError, match="the columns have different lengths"):
        TableBlocks({"weight": [1, 2], "length": [1]}, like)
    with pytest.raises(ValueError, match="has no rows"):
        TableBlocks({"weight": []}, like)
    with pytest.raises(ValueError, match="are a table, but the model takes 4 features"):
        TableBlocks({"weight": [1]}, ModelInputs((4,), ("a", "b")))


@pytest.mark.usefixtures("reader")
def test_rows_before_the_first_row_are_not_converted(
    tmp_path: Path, like: ModelInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, converted = TableBlocks(write(tmp_path, many_rows()), like), []
    transform = TableEncoder.transform

    def counted(encoder: TableEncoder, rows: Table) -> Any:
        converted.append(len(rows))
        return transform(encoder, rows)

    monkeypatch.setattr(TableEncoder, "transform", counted)
    list(table.blocks(40))
    assert sum(converted) < 15  # the last 5 rows, and the rest of the part that they begin in
