import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mnar.datasets.user_files import read_data
from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
from mnar.datasets.user_files.table import features_like, features_of, read_table

RNG = np.random.default_rng(0)
N = 120
HEIGHT = RNG.normal(size=N).round(3)
COLOUR = RNG.choice(["red", "green", "blue"], N)
LABEL = RNG.choice(["cat", "dog", ""], N)


def frame(**columns: Any) -> dict[str, Any]:
    return {"height": HEIGHT, "colour": COLOUR, "label": LABEL} | columns


def write(folder: Path, text: str) -> Path:
    path = folder / "own.csv"
    path.write_text(text)
    return path


def write_columns(folder: Path, columns: dict[str, Any]) -> Path:
    with (folder / "own.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return folder / "own.csv"


Own = Callable[..., PartlyLabeled]


@pytest.fixture
def own(tmp_path: Path) -> Own:
    """Return a function that writes the frame with further columns to a file and reads it."""
    return lambda **columns: read_table(write_columns(tmp_path, frame(**columns)), label="label")


def features(data: PartlyLabeled) -> Table:
    assert isinstance(data.x, Table)
    return data.x


def test_a_csv_becomes_numbers_levels_and_labels_some_of_them_missing(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "age,sex,flag,votes\n30,f,TRUE,yes\n?,m,FALSE,no\n1e2,,FALSE,\n-1,f,TRUE,NaN\n",
    )
    data = read_table(path, label="votes")
    table = features(data)
    assert data.kind == "table"
    assert table.numeric_names == ("age",)
    np.testing.assert_array_equal(table.numeric, [[30], [np.nan], [100], [-1]])
    assert table.categorical_names == ("sex", "flag")
    assert table.categories == (("f", "m"), ("FALSE", "TRUE"))
    assert table.categorical.tolist() == [[0, 1], [1, 0], [-1, 0], [0, 1]]
    assert data.class_names == ("no", "yes")
    assert data.y.tolist() == [1, 0, -1, -1]
    assert data.row_names == ["line 2", "line 3", "line 4", "line 5"]
    assert data.notes == ()


@pytest.mark.parametrize(
    ("separator", "numeric_names"), [(";", ("height",)), ("|", ())], ids=["semicolon", "another separator"]
)
def test_a_decimal_comma_is_a_number_only_beside_semicolons(
    tmp_path: Path, separator: str, numeric_names: tuple[str, ...]
) -> None:
    text = "height;sex;label\n1,5;f;a\n2,25;m;b\n2;f;\n".replace(";", separator)
    table = features(read_table(write(tmp_path, text)))
    assert table.numeric_names == numeric_names
    if numeric_names:
        assert table.numeric[:, 0].tolist() == [1.5, 2.25, 2]


def test_dates_of_a_dict_are_text_and_other_kinds_keep_their_values() -> None:
    columns = frame(
        day=np.array(["2020-01-01", "NaT"], "datetime64[ns]").repeat(N // 2),
        whole=np.arange(N) % 7,
        truth=RNG.random(N) < 0.5,
        mixed=[None, 1.5, "2"] * (N // 3),
        infinite=[np.inf, 0.0, 1.0] * (N // 3),
    )
    table, _ = features_of(columns)
    assert table.numeric_names == ("height", "whole", "mixed", "infinite")
    assert table.categorical_names == ("colour", "label", "day", "truth")
    assert table.categories[3] == ("False", "True")
    assert table.categorical[0, 2] == 0
    assert table.categorical[-1, 2] == -1
    np.testing.assert_array_equal(table.numeric[:3, 2:], [[np.nan, np.nan], [1.5, 0], [2, 1]])


class Series:
    """The methods of a DataFrame column that the reader calls."""

    def __init__(self, values: Any, dtype: str) -> None:
        self.values, self.dtype = values, dtype

    def astype(self, dtype: type) -> "Series":
        return Series(np.array(self.values, dtype), "object")

    def to_numpy(self) -> np.ndarray:
        return np.asarray(self.values)


class Frame(dict[Any, Series]):
    columns = property(lambda self: list(self))


def test_numbers_of_a_category_column_are_names() -> None:
    columns = Frame(code=Series([1, 2, None] * (N // 3), "category"), height=Series(HEIGHT, "float64"))
    table, _ = features_of(columns)
    assert table.categories == (("1", "2"),)
    assert table.numeric_names == ("height",)


@pytest.mark.parametrize("name", ["label", "Class", "TARGET", "y"])
def test_a_column_with_a_usual_name_is_taken_as_the_label_with_a_note(tmp_path: Path, name: str) -> None:
    path = write_columns(tmp_path, {"height": HEIGHT, name: LABEL})
    data = read_table(path)
    assert data.class_names == ("cat", "dog")
    assert data.notes == (f"{path}: column {name!r} is taken as the label",)


@pytest.mark.parametrize(
    ("columns", "listed"),
    [({"height": HEIGHT, "vote": LABEL}, "height, vote"), ({"a": HEIGHT, "y": LABEL, "label": LABEL}, "y, label")],
    ids=["no such name", "two such names"],
)
def test_a_label_column_that_cannot_be_guessed_is_an_error_that_lists_the_columns(
    tmp_path: Path, columns: dict[str, Any], listed: str
) -> None:
    with pytest.raises(ValueError, match=f"which column is the label.*--label: {listed}$"):
        read_table(write_columns(tmp_path, columns))


def test_an_ignored_column_is_not_taken_as_the_label(tmp_path: Path) -> None:
    path = write_columns(tmp_path, {"height": HEIGHT, "y": COLOUR, "label": LABEL})
    assert read_table(path, ignore=["y"]).class_names == ("cat", "dog")


@pytest.mark.parametrize("options", [{"label": "vote"}, {"label": "label", "ignore": ["vote"]}])
def test_a_missing_column_is_an_error_that_lists_the_columns(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has no column 'vote'; its columns are height, colour, label"):
        read_table(write_columns(tmp_path, frame()), **options)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ([3] * N, "every cell is 3"),
        (["x"] * N, "every cell is 'x'"),
        ([""] * N, "every cell is empty"),
        (np.arange(5, N + 5), "it counts the rows"),
        ([f"person {i}" for i in range(N)], "120 different texts in 120 cells, such as 'person 0'"),
    ],
)
def test_a_useless_column_is_left_out_with_a_note(own: Own, column: Any, reason: str) -> None:
    data = own(extra=column)
    assert "extra" not in features(data).numeric_names + features(data).categorical_names
    assert [note for note in data.notes if f"own.csv: column 'extra' left out: {reason}" in note]


def test_more_than_a_thousand_levels_are_free_text() -> None:
    levels = [f"town {i % 1001}" for i in range(4004)]
    table, notes = features_of({"town": levels, "height": np.arange(4004) % 9})
    assert table.categorical_names == ()
    assert "column 'town' left out: 1001 different texts" in notes[0]


def test_a_column_of_one_value_and_missing_cells_is_kept_because_missing_cells_are_informative(own: Own) -> None:
    ticked = np.where(RNG.random(N) < 0.5, "x", "")
    assert "ticked" in features(own(ticked=ticked)).categorical_names


def test_ignored_columns_are_left_out(tmp_path: Path) -> None:
    assert features(read_table(write_columns(tmp_path, frame()), ignore=["colour"])).categorical_names == ()


def test_a_table_without_a_feature_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no feature to learn from; .*'a' left out: every cell is 1"):
        read_table(write_columns(tmp_path, {"a": [1] * N, "label": LABEL}))


def leaks(data: PartlyLabeled) -> list[str]:
    return [note for note in data.notes if note.startswith("leak?")]


def test_features_that_are_independent_of_the_label_are_not_called_leaks(own: Own) -> None:
    assert leaks(own()) == []


LEAKS: dict[str, Callable[[], Any]] = {
    "a level for each class": lambda: np.where(LABEL == "cat", "feline", np.where(LABEL == "dog", "canine", COLOUR)),
    "several levels for each class": lambda: [f"{a}-{b}" for a, b in zip(LABEL, COLOUR, strict=True)],
    "a code for each class": lambda: np.where(LABEL == "cat", 7, RNG.choice([3, 9], N)),
    "a quantity that is larger for one class": lambda: RNG.random(N) + 2 * (LABEL == "dog"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_feature_that_tells_the_label_is_named(own: Own, leak: str) -> None:
    notes = leaks(own(result=LEAKS[leak]()))
    assert notes
    assert notes[0].startswith("leak? 'result' alone tells the label of 100.0%")


@pytest.mark.parametrize("num_values", [5, 10_000], ids=["few values", "many values"])
def test_a_quantity_cut_into_ranges_by_three_classes_is_named(tmp_path: Path, num_values: int) -> None:
    label = RNG.integers(0, 3, 3000)
    amount = label * num_values + RNG.integers(0, num_values, 3000)
    data = read_table(write_columns(tmp_path, {"amount": amount, "y": np.where(RNG.random(3000) < 0.5, label, -1)}))
    assert [note for note in data.notes if note.startswith("leak? 'amount' alone tells the label")]


def test_a_feature_missing_exactly_where_the_label_is_missing_is_named(own: Own) -> None:
    notes = leaks(own(hours=np.where(LABEL == "", np.nan, RNG.normal(size=N))))
    assert len(notes) == 1
    assert notes[0].startswith("leak? 'hours' alone tells for 100.0% of the rows whether they have a label")


def test_a_class_with_few_labels_is_no_evidence_of_a_leak(own: Own) -> None:
    label = np.array(["cat"] * 60 + ["dog"] * 5 + [""] * 55)
    assert leaks(own(label=label, paws=RNG.normal(size=N) + 9 * (label == "dog"))) == []


def test_new_rows_are_read_by_name_with_the_kinds_and_codes_of_the_old() -> None:
    schema = Table(np.empty((0, 1)), np.empty((0, 1), np.int64), ("age",), ("code",), (("x", "1"),))
    new = features_like({"other": [9] * 4, "code": [1, "", 2, "x"], "age": [5, None, "7", "inf"]}, schema)
    assert new.numeric_names == ("age",)
    np.testing.assert_array_equal(new.numeric, [[5], [np.nan], [7], [np.nan]])
    assert new.categories == (("x", "1", "2"),)
    assert new.categorical[:, 0].tolist() == [1, -1, 2, 0]


def test_new_rows_without_a_column_or_with_text_for_a_number_are_an_error() -> None:
    schema = Table(np.empty((0, 1)), np.empty((0, 0), np.int64), ("age",), (), ())
    with pytest.raises(ValueError, match="has no column 'age'; its columns are code"):
        features_like({"code": [1, 2]}, schema)
    with pytest.raises(ValueError, match="the table, row 1: 'age' is 'old', not a number"):
        features_like({"age": [3, "old"], "code": [1, 1]}, schema)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2], "label": ["x"]}, "the columns have different lengths, .*'a': 2, 'label': 1"),
        ({"a": [], "label": []}, "has no rows"),
        ({}, "has no columns"),
        ({"a": [[1, 2]], "label": ["x"]}, r"shape \(1, 2\)"),
    ],
)
def test_columns_that_make_no_table_are_an_error(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        features_of(columns)


def test_two_columns_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="two columns are called 'a'"):
        features_of(SimpleNamespace(columns=["a", "b", "a"]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [("cat,cat,", "every label is 'cat'"), (",?,NaN", "no row has a label")],
)
def test_labels_that_cannot_be_learned_from_are_an_error_that_names_file_and_column(
    tmp_path: Path, labels: str, message: str
) -> None:
    rows = "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels.split(",")))
    with pytest.raises(ValueError, match=rf"own\.csv, column 'vote': {message}"):
        read_table(write(tmp_path, "age,vote\n" + rows), label="vote")


def test_a_missing_cell_of_a_coded_parquet_column_is_missing(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    labels = ["ant", None, "bee", None, "cat"]
    path = tmp_path / "coded.parquet"
    parquet.write_table(arrow.table({"x": [1.0, 2, 3, 4, 5], "label": arrow.array(labels).dictionary_encode()}), path)
    assert read_data(path).y.tolist() == [0, -1, 1, -1, 2]


def test_parquet_cells_that_numpy_does_not_know_are_texts(tmp_path: Path) -> None:
    """Lists were decoded as if they were codes, and Python has no time of day in nanoseconds."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "list": arrow.array([[1, 2], None, [1, 2], [], []]),
        "deep": arrow.array([[{"a": [1]}], None, [{"a": [1]}], [], []]),
        "pair": arrow.array([[1.0, 2.0], None, [1.0, 2.0], [3.0, 4.0], None], arrow.list_(arrow.float32(), 2)),
        "hour": arrow.array([1, None, 1, 3_600 * 10**9, None], arrow.time64("ns")),
        "label": ["ant", None, "bee", "ant", "bee"],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "nested.parquet")
    table = features(read_data(tmp_path / "nested.parquet"))
    levels = dict(zip(table.categorical_names, table.categories, strict=True))
    assert levels["list"] == ("[1 2]", "[]")
    assert levels["pair"] == ("[1. 2.]", "[3. 4.]")
    assert levels["hour"] == ("00:00:00.000000001", "01:00:00.000000000")
    assert len(levels["deep"]) == 2


def test_a_parquet_column_that_holds_no_cells_of_a_table_is_named(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    no_text = arrow.array([b"\xff", b"ant"]).cast(arrow.string(), safe=False)
    path = tmp_path / "bytes.parquet"
    parquet.write_table(arrow.table({"x": no_text, "label": ["ant", None]}), path)
    with pytest.raises(ValueError, match=r"bytes\.parquet: column 'x' holds cells of type string.*; save them as"):
        read_data(path)


def test_a_parquet_file_with_a_damaged_column_name_is_refused_with_a_remedy(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "own.parquet"
    parquet.write_table(arrow.table({"weight": [1, 2], "label": ["ant", None]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"weight", b"w\xffight"))
    with pytest.raises(ValueError, match=r"own\.parquet is not a complete parquet file .*; write the file again"):
        read_data(path)


def test_a_parquet_file_that_asks_for_too_much_memory_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def read(file: object) -> None:
        raise arrow.ArrowMemoryError("malloc of size 4611686018427387904 failed")

    path = tmp_path / "own.parquet"
    parquet.write_table(arrow.table({"x": [1], "label": ["ant"]}), path)
    monkeypatch.setattr(parquet.ParquetFile, "read", read)
    with pytest.raises(ValueError, match=r"own\.parquet does not fit into the memory, or is damaged .*; save fewer"):
        read_data(path)


def test_a_parquet_file_reads_as_the_csv_of_the_same_cells(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    labels = [label or None for label in LABEL.tolist()]
    path = tmp_path / "own.PQ"
    parquet.write_table(arrow.table({"height": HEIGHT, "colour": COLOUR.tolist(), "label": labels}), path)
    from_parquet, from_csv = read_data(path), read_data(write_columns(tmp_path, frame()))
    assert np.array_equal(features(from_parquet).numeric, features(from_csv).numeric)
    assert features(from_parquet).categories == features(from_csv).categories
    assert np.array_equal(from_parquet.y, from_csv.y)


def test_row_numbers_and_ids_name_rows_where_lines_do_not(tmp_path: Path) -> None:
    path = write(tmp_path, 'nr,age,vote\n007,"3\n",yes\n\n008,4,no\n,,\n7,x5,\n')
    data = read_table(path, label="vote", id="nr")
    assert data.ids == ["007", "008", "7"]
    assert data.id_name == "nr"
    assert list(data.row_numbers) == [1, 2, 4]  # as pandas.read_csv counts them, from 1
    assert list(data.row_names) == ["row 1", "row 2", "row 4"]
    assert features(data).categorical_names == ("age",)
    with pytest.raises(ValueError, match="has no column 'name'; its columns are nr, age, vote"):
        read_table(path, label="vote", id="name")


def test_infinite_and_huge_numbers_are_pointed_out_and_infinite_ones_are_missing(own: Own) -> None:
    data = own(speed=["inf", "1e400", *map(str, range(N - 2))], mass=["-1e300", *map(str, range(N - 1))])
    table = features(data)
    speed = table.numeric[:, table.numeric_names.index("speed")]
    assert np.isnan(speed).tolist() == [True] * 2 + [False] * (N - 2)
    assert any("'speed' has 2 values that are infinite or too large" in note for note in data.notes)
    assert any("'mass' has numbers as large as 1.0e+300" in note for note in data.notes)


def test_a_leak_is_found_in_a_sample_of_a_large_table_of_huge_numbers(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnar.datasets.user_files.leaks.MAX_ROWS", 30)
    data = own(price=np.where(LABEL == "cat", 1e300, -1e300) * RNG.uniform(1, 2, N))
    assert any("'price' alone tells the label of 100.0%" in note for note in leaks(data))


def test_row_numbers_are_those_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = write(tmp_path, 'nr,age,vote\na,"3\n\n",yes\n\nb,4,no\n,,\n\n\nc,5,\nd,6,"y\n"\n')
    data, frame = read_table(path, label="vote", id="nr"), pandas.read_csv(path)
    assert [frame.nr[number - 1] for number in data.row_numbers] == data.ids == ["a", "b", "c", "d"]
