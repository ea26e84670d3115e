"""Tables as Parquet files, for the commands that read all rows at once and for those that read them part by part."""

from __future__ import annotations

import csv
import io
import random
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz.csv_table import COUNTS, OPTIONS
from tests.fuzz.mutations import mutated
from tests.fuzz.reader import Reader, draw_no_report, stop_before_estimating
from tests.fuzz.tokens import CSV_TOKENS, PARQUET_TOKENS
from tests.fuzz.yaml_options import finished_portfolio
from tests.support.own_data_files import write_table

MAGIC = b"PAR1"  # at both ends of a file
LENGTH = 4  # bytes that give the length of the footer, before the last magic word
LARGE_NUMBERS = (  # as a footer writes 2³¹, 2³² - 1, 2⁴⁰, 2⁶³ - 1 and -1
    *(b"\x80\x80\x80\x80\x10", b"\xfe\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x80\x01"),
    *(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x01"),
)
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
TIMES = ("date32", "date64", "timestamp", "timestamp_s", "time32", "time64", "duration", "zone")
KINDS = (  # of cells
    *(
        "text",
        "large_text",
        "broken text",
        "coded",
        "coded numbers",
        "coded texts with holes",
        "bytes",
        "fixed",
        "null",
    ),
    *("bool", "half", "int8", "uint64", "int64", "decimal", "list", "list of texts", "fixed list", "struct", "map"),
    *("deep", "chunks", *TIMES),
)
PREDICT = ("predict", "portfolio", "data.parquet")
Columns = list[tuple[str, Any]]  # names, which may be the same, and arrays


class ParquetTable(Reader):
    name = "Parquet table"
    first_commands = (("inspect", "data.parquet", "--label", "kind"), PREDICT)

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        finished_portfolio(originals)
        arrow = import_module("pyarrow")
        header, *rows = csv.reader(write_table(originals / "table.csv", COUNTS).read_text().splitlines())
        cells = dict(zip(header, zip(*rows, strict=True), strict=True))
        self.columns: Columns = [(name, arrow.array(map(float, cells[name]))) for name in ("weight", "length")]
        self.columns += [(name, arrow.array([cell or None for cell in cells[name]])) for name in ("colour", "kind")]
        (originals / "data.parquet").write_bytes(_file(self.columns, random.Random(0)))

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        content = _file(_changed_columns(self.columns, rng) if rng.random() < 0.6 else self.columns, rng)
        if rng.random() < 0.5:
            content = rng.choice((_changed_bytes, _changed_footer, _changed_footer, _with_a_large_number))(content, rng)
        (folder / "data.parquet").write_bytes(content)
        if rng.random() < 0.3:
            shutil.copytree(self.originals / "portfolio", folder / "portfolio")
            return list(PREDICT)
        return ["inspect", "data.parquet", *rng.choice(OPTIONS)]

    def stop_early(self) -> None:
        draw_no_report()
        stop_before_estimating()


def _file(columns: Columns, rng: random.Random) -> bytes:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    table = arrow.Table.from_arrays([array for _, array in columns], names=[name for name, _ in columns])
    if rng.random() < 0.1:  # pandas writes the types of its columns here
        odd = rng.choice([b"", b"{}", b"[]", b"\xff", b'{"columns": [1], "index_columns": ["x"]}', b"[" * 3000])
        table = table.replace_schema_metadata({rng.choice([b"pandas", b"ARROW:schema"]): odd})
    buffer = io.BytesIO()
    parquet.write_table(
        table,
        buffer,
        compression=rng.choice(COMPRESSIONS),
        use_dictionary=rng.random() < 0.5,
        row_group_size=rng.choice([7, 1000]),
        data_page_version=rng.choice(["1.0", "2.0"]),
        store_schema=rng.random() < 0.7,
    )
    return buffer.getvalue()


def _changed_columns(columns: Columns, rng: random.Random) -> Columns:
    """The same columns, some of them with another type, name, value or number of rows."""
    changed = list(columns)
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(changed))
        name, array = changed[place]
        change = rng.choice(["type", "type", "type", "value", "value", "name", "same name", "rows", "drop", "more"])
        if change == "type":
            changed[place] = name, _with_another_type(array, rng)
        elif change == "value":
            changed[place] = name, _with_another_value(array, rng)
        elif change == "name":
            changed[place] = rng.choice(["", " ", "label", "kind ", "a.b", *CSV_TOKENS]), array
        elif change == "same name":
            changed.insert(rng.randint(0, len(changed)), (name, rng.choice(columns)[1][: len(array)]))
        elif change == "rows":
            num_rows = rng.choice([0, 0, 1, 2, 7])
            changed = [(name, array[:num_rows]) for name, array in changed]
        elif change == "drop" and len(changed) > 1:
            del changed[place]
        elif change == "more":
            changed.append(("more", _with_another_type(array, rng)))
    shortest = min(len(array) for _, array in changed)
    return [(name, array[:shortest]) for name, array in changed]


def _with_another_type(array: Any, rng: random.Random) -> Any:
    """The cells of a column as another type, or cells of another type in their place."""
    arrow = import_module("pyarrow")
    number_of_rows = range(len(array))
    kind = rng.choice(KINDS)
    is_plain = arrow.types.is_floating(array.type) or arrow.types.is_string(array.type)
    if kind in ("text", "large_text") and is_plain:
        # safe=False: the texts may be broken already
        return array.cast(arrow.string() if kind == "text" else arrow.large_string(), safe=False)
    if kind in ("coded", "text", "large_text"):
        return array.dictionary_encode() if is_plain else array
    if kind == "coded numbers":
        return arrow.array([None if row % 5 == 0 else row % 3 for row in number_of_rows]).dictionary_encode()
    if kind == "coded texts with holes":
        return arrow.array([None if row % 2 else "ant" for row in number_of_rows], arrow.string()).dictionary_encode()
    if kind == "broken text":
        broken = arrow.array([b"\xff" if row == 3 else b"ant" for row in number_of_rows], arrow.binary())
        return broken.cast(arrow.string(), safe=False)
    values: dict[str, tuple[list[Any], Any]] = {
        "bytes": ([b"\xff\xfe", b"ant", b""], arrow.binary()),
        "fixed": ([b"\xff\xfe", None, b"ab"], arrow.binary(2)),
        "null": ([None], arrow.null()),
        "bool": ([True, None, False], arrow.bool_()),
        "half": ([1.5, None, float("inf")], arrow.float16()),
        "int8": ([1, 2, -1, None], arrow.int8()),
        "uint64": ([0, 2**64 - 1, None], arrow.uint64()),
        "int64": ([-(2**63), 2**63 - 1, 0], arrow.int64()),
        "decimal": ([1, None, 10**20], arrow.decimal128(30, 2)),
        "list": ([[1, 2], [], None], arrow.list_(arrow.int64())),
        "list of texts": ([["ant"], [None]], arrow.list_(arrow.string())),
        "fixed list": ([[1.0, 2.0], None], arrow.list_(arrow.float32(), 2)),
        "struct": ([{"a": 1, "b": "x"}, None], arrow.struct([("a", arrow.int32()), ("b", arrow.string())])),
        "map": ([[("a", 1)], [], None], arrow.map_(arrow.string(), arrow.int32())),
        "deep": ([[[{"a": [1]}]], None], arrow.list_(arrow.list_(arrow.struct([("a", arrow.list_(arrow.int8()))])))),
        "zone": ([0, None, 2**40], arrow.timestamp("us", "Europe/Paris")),
        "date32": ([0, None, -(2**31)], arrow.date32()),
        "date64": ([0, None, 86_400_000 * 10**6], arrow.date64()),
        "timestamp": ([0, None, 2**62], arrow.timestamp("ns")),
        "timestamp_s": ([0, None, 2**40], arrow.timestamp("s")),
        "time32": ([0, None, 86_399], arrow.time32("s")),
        "time64": ([0, None, 1], arrow.time64("ns")),
        "duration": ([0, None, 2**50], arrow.duration("ms")),
    }
    if kind == "chunks":
        return arrow.chunked_array([array[:2], array[2:]])
    cells, type_of_cells = values[kind]
    if kind in TIMES:
        whole = arrow.int32() if type_of_cells.bit_width == 32 else arrow.int64()
        return arrow.array([cells[row % len(cells)] for row in number_of_rows], whole).cast(type_of_cells, safe=False)
    return arrow.array([cells[row % len(cells)] for row in number_of_rows], type_of_cells)


def _with_another_value(array: Any, rng: random.Random) -> Any:
    arrow = import_module("pyarrow")
    is_plain = arrow.types.is_floating(array.type) or arrow.types.is_string(array.type)
    cells = array.to_pylist() if is_plain else []
    if cells:
        is_number = isinstance(next((cell for cell in cells if cell is not None), None), float)
        numbers = [None, float("nan"), float("inf"), -1e308, 1e39, 0.0, 1e-320]
        token = rng.choice(numbers) if is_number else rng.choice([None, *CSV_TOKENS])
        for row in rng.choice([range(len(cells)), [rng.randrange(len(cells))]]):
            cells[row] = token
        if not is_number and all(cell is None or isinstance(cell, str) for cell in cells):
            return arrow.array(cells, arrow.string())
        return arrow.array(cells, arrow.float64()) if is_number else array
    return array


def _changed_bytes(content: bytes, rng: random.Random) -> bytes:
    return mutated(content, rng, PARQUET_TOKENS)


def _changed_footer(content: bytes, rng: random.Random) -> bytes:
    """The footer, which says where the columns are and of which types, changes; its length is right."""
    pages, footer = _pages_and_footer(content)
    return _joined(pages, mutated(footer, rng, PARQUET_TOKENS))


def _with_a_large_number(content: bytes, rng: random.Random) -> bytes:
    """A byte of the footer or of the first page becomes a large number: of rows, values, bytes or places."""
    pages, footer = _pages_and_footer(content)
    number = rng.choice(LARGE_NUMBERS)
    if rng.random() < 0.7:
        place = rng.randrange(len(footer))
        return _joined(pages, footer[:place] + number + footer[place + 1 :])
    place = rng.randrange(len(MAGIC), min(len(pages), 40)) if len(pages) > len(MAGIC) else 0
    return _joined(pages[:place] + number + pages[place + len(number) :], footer)


def _pages_and_footer(content: bytes) -> tuple[bytes, bytes]:
    end = len(content) - len(MAGIC) - LENGTH
    start = end - int.from_bytes(content[end : end + LENGTH], "little")
    return content[:start], content[start:end]


def _joined(pages: bytes, footer: bytes) -> bytes:
    return pages + footer + len(footer).to_bytes(LENGTH, "little") + MAGIC
