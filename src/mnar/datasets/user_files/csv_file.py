"""Read a CSV file as spreadsheets write it, in any usual encoding, line end and separator, with all cells as text.

No function but `read_csv` keeps more than a block of the file in memory.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.types import OnProgress

SEPARATORS = ("\t", ";", "|", ",")  # the comma is last, because it also occurs in numbers and names
SAMPLE_RECORDS, SAMPLE_CHARACTERS = 50, 100_000  # the separator is recognised from the beginning of the file
BLOCK = 1 << 22  # bytes that are looked at together
ROWS_PER_REPORT = 1000


@dataclass(frozen=True)
class CsvFile:
    """The contents of a CSV file."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # rows[i] begins on line lines[i] of the file
    row_numbers: list[int]  # rows[i] is row row_numbers[i] of the file, counted from 1 without the header
    separator: str
    notes: list[str]

    @cached_property
    def row_names(self) -> RowNames:
        """What messages call the rows: by line if every row takes exactly one line, otherwise by row number.

        A spreadsheet shows no lines, so a line number would point to a wrong row after a cell with a line break.
        """
        one_line_each = all(line == number + 1 for line, number in zip(self.lines, self.row_numbers, strict=True))
        return RowNames("line", self.lines) if one_line_each else RowNames("row", self.row_numbers)

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        if name not in self.header:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.header)}; name one of these")
        position = self.header.index(name)
        return [row[position] for row in self.rows]


@dataclass(frozen=True)
class CsvLayout:
    """How a file has to be read, and the characters in it that decide how fast it can be read."""

    path: Path
    encoding: str
    separator: str
    header: list[str]
    has_quotes: bool
    has_underscores: bool
    has_lone_carriage_returns: bool  # as line ends
    num_lines: int  # without a last line that is empty
    notes: list[str] = field(default_factory=list)

    @property
    def decimal_comma(self) -> bool:
        """Whether 3,5 is a number: spreadsheets that write numbers in this way separate the cells by semicolons."""
        return self.separator == ";"


def read_csv(path: Path) -> CsvFile:
    """Read a file with a header line. Rows in which every cell is empty are left out."""
    layout = csv_layout(path)
    rows, lines, row_numbers, last_number = [], [], [], 0
    for last_number, line, cells in csv_rows(layout):
        if any(cells):
            rows.append(cells)
            lines.append(line)
            row_numbers.append(last_number)
    notes = [*layout.notes, *notes_on_empty_rows(layout, len(rows), last_number - len(rows))]
    return CsvFile(layout.path, layout.header, rows, lines, row_numbers, layout.separator, notes)


def notes_on_empty_rows(layout: CsvLayout, num_rows: int, num_empty: int) -> list[str]:
    """Return a note if some rows are left out because they are empty. A file without any other row is an error."""
    if not num_rows:
        raise ValueError(f"{layout.path} has a header and no rows; give at least one row below the header")
    return [f"{layout.path}: {num_empty} rows are left out because every cell is empty"] if num_empty else []


def csv_layout(path: Path) -> CsvLayout:
    """Find out how to read a file: look at all its bytes, and parse its header."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; name a CSV file with a header line")
    encoding, notes = _encoding(path)
    beginning = _beginning(path, encoding)
    separator = _separator(beginning)
    has_quotes = has_underscores = has_lone_carriage_returns = False
    num_lines, last = 0, "\n"
    with path.open(encoding=encoding, newline="") as file:
        while text := file.read(BLOCK):
            if "\0" in text:
                line = num_lines + text.count("\n", 0, text.index("\0")) + 1
                raise ValueError(
                    f"{path}, line {line}: there is a NUL character, so this is not a text file; save it again as UTF-8"
                )
            has_quotes = has_quotes or '"' in text
            has_underscores = has_underscores or "_" in text
            if last == "\r" or "\r" in text:
                joined = last + text if last == "\r" else text  # the two characters of a line end may be in two blocks
                num_lone = joined.removesuffix("\r").count("\r") - joined.count("\r\n")
                has_lone_carriage_returns = has_lone_carriage_returns or num_lone > 0
                num_lines += num_lone
            num_lines += text.count("\n")
            last = text[-1]
    num_lines += last != "\n"
    header = _header(next(_records(beginning, separator, path), None), path)
    return CsvLayout(
        path, encoding, separator, header, has_quotes, has_underscores, has_lone_carriage_returns, num_lines, notes
    )


def csv_rows(layout: CsvLayout, progress: OnProgress | None = None) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the number of each row (from 1), the line on which it begins, and its cells, which may all be empty.

    A row with another number of cells than the header is an error. `progress` counts bytes.
    """
    path, num_cells, num_bytes = layout.path, len(layout.header), layout.path.stat().st_size
    with path.open("rb") as file, io.TextIOWrapper(file, layout.encoding, newline="") as text:
        records = _records(text, layout.separator, path)
        next(records)  # the header
        for number, (line, cells) in enumerate(records, 1):
            if len(cells) != num_cells:
                if any(cells):
                    raise ValueError(
                        f"{path}, line {line}: {len(cells)} cells separated by {layout.separator!r}, but {num_cells} "
                        "in the header; add or remove cells, and put quotes around a cell that contains the separator"
                    )
                cells = [""] * num_cells
            yield number, line, cells
            if progress is not None and number % ROWS_PER_REPORT == 0:
                progress(file.tell(), num_bytes)
    if progress is not None:
        progress(num_bytes, num_bytes)


def count_rows(layout: CsvLayout) -> int:
    """Return the number of rows below the header, with those in which every cell is empty. No row is converted."""
    with layout.path.open(encoding=layout.encoding, newline="") as file:
        if layout.has_quotes:  # a quoted cell may contain line ends
            return sum(1 for _ in _records(file, layout.separator, layout.path)) - 1
        return sum(1 for line in file if line not in ("\n", "\r\n", "\r")) - 1


def read_header(path: Path) -> list[str]:
    """Return the column names of a CSV file. Only the beginning of the file is read."""
    path = Path(path)
    beginning = _beginning(path, None)
    return _header(next(_records(beginning, _separator(beginning), path), None), path)


def _beginning(path: Path, encoding: str | None) -> str:
    """Return the first characters of a file, whose encoding is guessed from them if it is not given."""
    with path.open("rb") as file:
        data = file.read(4 * SAMPLE_CHARACTERS)  # a character has at most four bytes
    for candidate in [encoding] if encoding else [_unicode(data), "cp1252"]:
        try:
            # final=False: the sample may end within a character
            return codecs.getincrementaldecoder(candidate)().decode(data)[:SAMPLE_CHARACTERS]
        except UnicodeDecodeError:
            continue
    return _beginning(path, _encoding(path)[0])  # raises the error with its line


def _unicode(data: bytes) -> str:
    """Return the encoding of a file that begins with these bytes, if it is a Unicode file."""
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _encoding(path: Path) -> tuple[str, list[str]]:
    """Return the encoding of a file, UTF-8, UTF-16 or Windows-1252, and a note if it is no Unicode."""
    with path.open("rb") as file:
        encoding = _unicode(file.read(2))
    if _can_decode(path, encoding):
        return encoding, []
    # From here on the whole file is in memory: the position of the first wrong byte is needed.
    data = path.read_bytes()
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            raise ValueError(
                f"{path} begins like a UTF-16 file but is none ({error}); save it again as UTF-8"
            ) from error
        where = _byte_and_line(path, data, error)
        try:
            data.decode("cp1252")
        except UnicodeDecodeError as second:
            where = _byte_and_line(path, data, second)
            raise ValueError(f"{where} is neither UTF-8 nor Windows-1252; save the file again as UTF-8") from second
        return "cp1252", [f"{where} is not UTF-8, so the file was read as Windows-1252; check its accented letters"]
    return encoding, []


def _can_decode(path: Path, encoding: str) -> bool:
    """Whether the whole file has this encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _byte_and_line(path: Path, data: bytes, error: UnicodeDecodeError) -> str:
    """Return where in the file the decoder failed: the path, the line and the byte."""
    # The position that the decoder reports does not count a byte-order mark.
    start = error.start + len(data) - len(error.object)
    line = data.count(b"\n", 0, start) + 1
    return f"{path}, line {line}: byte 0x{data[start]:02x}"


def _separator(beginning: str) -> str:
    """Return the separator with which most of the first records have as many cells as the header, two or more."""

    def goodness_of_fit(separator: str) -> tuple[int, int]:
        sizes = []
        try:
            for cells in islice(csv.reader(io.StringIO(beginning, newline=""), delimiter=separator), SAMPLE_RECORDS):
                if cells:
                    sizes.append(len(cells))  # noqa: PERF401, records before an error still count
        except csv.Error:
            pass
        if not sizes or sizes[0] == 1:
            return int(separator == ","), 0  # a file with one column
        return sizes.count(sizes[0]), sizes[0]

    return max(SEPARATORS, key=goodness_of_fit)  # if several fit equally well, the first of them


def _records(text: str | io.TextIOBase, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not a blank line, after the number of the line on which it begins."""
    lines = io.StringIO(text, newline="") if isinstance(text, str) else text
    # strict: otherwise a quote that is never closed silently turns the rest of the file into one cell.
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    first_line = 1
    try:
        for cells in reader:
            if cells:
                yield first_line, cells
            first_line = reader.line_num + 1
    except csv.Error as error:
        what, remedy = str(error), "close the quotes of the cell, and double the quotes inside it"
        if "field limit" in what:
            what = f"a cell has more than {csv.field_size_limit():,} characters"
            remedy = "shorten the cell, or close its quotes"
        raise ValueError(f"{path}, line {first_line}: {what}; {remedy}") from error


def _header(record: tuple[int, list[str]] | None, path: Path) -> list[str]:
    """Return the column names in the first record; an empty name or a repeated name is an error."""
    if record is None:
        raise ValueError(f"{path} is empty; give a header line and at least one row")
    line, cells = record
    header = [name.strip() for name in cells]
    for position, name in enumerate(header):
        if not name:
            raise ValueError(
                f"{path}, line {line}: column {position + 1} has no name; give the column a name or remove it"
            )
        if name in header[:position]:
            raise ValueError(f"{path}, line {line}: two columns are called {name!r}; rename one of them")
    return header
