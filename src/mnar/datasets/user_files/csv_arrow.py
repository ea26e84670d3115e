"""Read the rows of a plain CSV file in blocks, with the columns of each block, by pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator
from csv import field_size_limit
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from mnar.datasets.user_files.csv_blocks import Block, Codes, Numbers
from mnar.datasets.user_files.csv_file import CsvLayout
from mnar.datasets.user_files.label_values import USUAL_MISSING_FEATURES
from mnar.types import OnProgress

BYTES_PER_BLOCK = 1 << 23
BYTES_FOR_THREADS = 1 << 26  # the stacks and the small objects of pyarrow's threads


class CannotRead(Exception):
    """The csv module would read the file in another way, or refuse it, or pyarrow has too little memory."""


def can_read(layout: CsvLayout) -> bool:
    """Whether pyarrow is installed and reads the file as the csv module does.

    With quotes, the two differ: the csv module skips spaces before a quote and refuses a quote within a cell.
    """
    is_plain = layout.encoding == "utf-8-sig" and not layout.has_quotes and not layout.has_lone_carriage_returns
    return is_plain and find_spec("pyarrow") is not None


def arrow_blocks(layout: CsvLayout, progress: OnProgress | None = None) -> Iterator[Block]:
    """Yield all rows of the file. `progress` counts bytes.

    A row of another length raises `CannotRead`, and so does a lack of memory or threads: the csv module needs less.
    """
    pyarrow, csv = import_module("pyarrow"), import_module("pyarrow.csv")
    if not _has_memory_for_a_block():
        raise CannotRead
    names = [f"f{column}" for column in range(len(layout.header))]  # as pyarrow calls columns without names
    num_bytes, num_rows = layout.path.stat().st_size, 0
    try:
        with csv.open_csv(
            str(layout.path),
            csv.ReadOptions(block_size=BYTES_PER_BLOCK, autogenerate_column_names=True),
            csv.ParseOptions(delimiter=layout.separator, quote_char=False, double_quote=False),
            csv.ConvertOptions(
                check_utf8=False,  # `csv_layout` has checked the encoding
                column_types={name: pyarrow.string() for name in names},
                strings_can_be_null=False,
            ),
        ) as batches:
            for batch in batches:
                if batch.num_columns != len(names):
                    raise CannotRead
                yield _block(batch if num_rows else batch.slice(1))  # the first row is the header
                num_rows += batch.num_rows
                if progress is not None:  # by rows, because pyarrow reads the file ahead
                    progress(num_bytes * num_rows // max(num_rows, layout.num_lines), num_bytes)
    except pyarrow.ArrowException as error:
        raise CannotRead from error
    if progress is not None:
        progress(num_bytes, num_bytes)


class ArrowCells:
    """The cells of a column as an Arrow array of texts."""

    def __init__(self, cells: Any) -> None:
        self.cells = cells

    def numbers(self, *, decimal_comma: bool) -> Numbers | None:
        pyarrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        cells = compute.replace_substring(self.cells, ",", ".") if decimal_comma else self.cells
        values = _finite_numbers(cells)
        if values is None:
            is_missing = compute.is_in(self.cells, value_set=pyarrow.array(USUAL_MISSING_FEATURES))
            values = _finite_numbers(compute.if_else(is_missing, pyarrow.scalar(None, pyarrow.string()), cells))
        return values

    def distinct(self) -> tuple[list[str], Codes]:
        encoded = self.cells.dictionary_encode()
        # The csv module skips spaces at the beginning of a cell.
        return [text.lstrip(" ") for text in encoded.dictionary.to_pylist()], _array(encoded.indices)


def _has_memory_for_a_block() -> bool:
    """Whether a block and the threads of pyarrow fit into the memory that this process may use.

    If a thread of `open_csv` gets no memory for the first block, that thread and the caller wait for each other for
    ever (pyarrow 26). So the memory is asked for here, where a refusal is an error, and is given back at once.
    """
    try:
        # First the buffer, because pyarrow reserves up to 1 GiB for later buffers when it makes its first one.
        import_module("pyarrow").allocate_buffer(BYTES_PER_BLOCK)
        np.empty(BYTES_FOR_THREADS, np.uint8)
    except MemoryError:
        return False
    return True


def _block(batch: Any) -> Block:
    """Return a batch of rows as a block, without the rows in which every cell is empty."""
    pyarrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    for column in batch.columns:
        if (compute.max(compute.binary_length(column)).as_py() or 0) > field_size_limit():
            raise CannotRead  # the csv module refuses so long a cell
    is_empty = np.ones(batch.num_rows, bool)
    for column in batch.columns:
        is_empty &= _array(compute.equal(compute.utf8_ltrim(column, " "), ""))
        if not is_empty.any():  # usually after the first column
            break
    kept = batch.filter(pyarrow.array(~is_empty)) if is_empty.any() else batch
    return Block([ArrowCells(column) for column in kept.columns], batch.num_rows, np.flatnonzero(is_empty).tolist())


def _finite_numbers(cells: Any) -> Numbers | None:
    """Return texts as numbers, NaN where null. None: a text is no number, not finite, or spelled in an unusual way."""
    pyarrow = import_module("pyarrow")
    try:
        numbers = cells.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return None
    values: Numbers = _array(numbers)
    return values if np.count_nonzero(~np.isfinite(values)) == numbers.null_count else None


def _array(values: Any) -> Any:
    """Return an Arrow array as a numpy array, NaN where it is null."""
    return values.to_numpy(zero_copy_only=False)
