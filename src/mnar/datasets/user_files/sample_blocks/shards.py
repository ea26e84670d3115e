"""A folder of shards: tables or arrays of the same kind, read one after another in the order of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.columns import PARQUET
from mnar.datasets.user_files.sample_blocks.blocks import Blocks, SampleBlocks
from mnar.datasets.user_files.sample_blocks.tables import TableBlocks

ARRAY_SHARDS = (".npy", ".npz")
TABLE_SHARDS = (".csv", ".tsv", *PARQUET)
MOST_NOTES = 5  # of all shards together

OpenFile = Callable[[Path], SampleBlocks]


class Map(Protocol):
    """Calls a function for each item, and gives the results in the order of the items, as the built-in `map` does."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]: ...


class ShardFacts(NamedTuple):
    """What is known about a shard before its samples are read."""

    num_rows: int  # of a CSV file: with the rows in which every cell is empty
    columns: frozenset[str]  # without columns: an array
    can_start_anywhere: bool
    notes: list[str]


@dataclass
class Shard:
    """One file of the folder. The file is opened when its samples are read."""

    path: Path
    open_file: OpenFile
    num_rows: int | None
    rows_before: int  # in the shards before this one
    can_start_anywhere: bool
    id_name: str | None
    notes: list[str] = field(default_factory=list)  # what was found while the samples were read

    def blocks(self, first_row: int = 0) -> Blocks:
        opened = self.open_file(self.path)
        at_opening = list(opened.notes)
        try:
            with closing(opened.blocks(first_row)) as blocks:
                for block in blocks:
                    names = [f"{self.path.name}, {name}" for name in block.names]
                    yield block._replace(names=names, row_numbers=block.row_numbers + self.rows_before)
        finally:
            self.num_rows = opened.num_rows
            self.notes = [note for note in opened.notes if note not in at_opening]

    def every_nth(self, every: int, first: int = 0) -> npt.NDArray[Any]:
        return self.open_file(self.path).every_nth(every, first)


class ShardBlocks:
    """The samples of all shards. A row number counts the rows of all shards, in the order of their names.

    folder       the folder that contains the shards
    paths        the shards, sorted
    open_file    opens one shard
    id           a column that identifies the samples
    over         calls a function for each shard; the default works on this machine, one shard after another
    """

    can_start_anywhere = False

    def __init__(
        self, folder: Path, paths: Sequence[Path], open_file: OpenFile, *, id: str | None = None, over: Map = map
    ) -> None:
        facts: list[ShardFacts] = list(over(partial(_look_at, open_file), paths))
        for path, of_shard in zip(paths, facts, strict=True):
            _refuse_other_columns(path, of_shard.columns, paths[0], facts[0].columns)
        ends = np.cumsum([of_shard.num_rows for of_shard in facts]).tolist()
        self.shards = [
            Shard(path, open_file, of_shard.num_rows, end - of_shard.num_rows, of_shard.can_start_anywhere, id)
            for path, of_shard, end in zip(paths, facts, ends, strict=True)
        ]
        self.folder, self.paths, self.over, self.id_name = folder, paths, over, id
        self.num_rows: int | None = ends[-1]
        self.notes = list(facts[0].notes)

    def blocks(self, first_row: int = 0) -> Blocks:
        start, row = self.position(first_row)
        notes: list[str] = []
        for shard in self.shards[start:]:
            yield from shard.blocks(row)
            self.num_rows, row = sum(shard.num_rows or 0 for shard in self.shards), 0
            notes += shard.notes
        self.notes += shortened(notes)

    def every_nth(self, every: int, first: int = 0) -> npt.NDArray[Any]:
        starts = [(first - shard.rows_before) % every for shard in self.shards]
        parts = self.over(partial(_every_nth, every), zip(self.shards, starts, strict=True))
        return np.concatenate([part for part in parts if len(part)])

    def position(self, first_row: int) -> tuple[int, int]:
        """Return the number of the shard in which `first_row` lies, and the row in this shard.

        CSV files before this row are read again, because rows in which every cell is empty do not count.
        """
        if first_row == 0:
            return 0, 0
        for number, shard in enumerate(self.shards):
            if any(True for _ in shard.blocks(first_row)):
                return number, first_row
            first_row -= shard.num_rows or 0  # exact, because the shard was read to its end
        return len(self.shards), 0


def shards_in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the shards in a folder, sorted by name. They must be of one kind, e.g. all of them .csv files.

    Names that begin with a dot or an underscore are left out, such as _SUCCESS of Spark.
    """
    found = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in suffixes and not path.name.startswith((".", "_")) and path.is_file()
    )
    for path in found:
        if path.suffix.lower() != found[0].suffix.lower():
            raise ValueError(
                f"{folder} has files of several kinds, e.g. {found[0].name} and {path.name}; keep one kind of shards "
                "in the folder, or name one file"
            )
    return found


def shortened(notes: Sequence[str]) -> list[str]:
    """Return the first notes on shards, and how many there are beyond these."""
    different = list(dict.fromkeys(notes))
    num_more = len(different) - MOST_NOTES
    more = [f"number of further notes on other shards: {num_more:,}"] if num_more > 0 else []
    return [*different[:MOST_NOTES], *more]


def _look_at(open_file: OpenFile, path: Path) -> ShardFacts:
    opened = open_file(path)
    assert opened.num_rows is not None
    columns = opened.source.names if isinstance(opened, TableBlocks) else ()
    return ShardFacts(opened.num_rows, frozenset(columns), opened.can_start_anywhere, list(opened.notes))


def _every_nth(every: int, shard_and_first: tuple[Shard, int]) -> npt.NDArray[Any]:
    shard, first = shard_and_first
    return shard.every_nth(every, first)


def _refuse_other_columns(path: Path, columns: frozenset[str], first: Path, expected: frozenset[str]) -> None:
    for name in sorted(columns ^ expected):
        has, has_not = (path, first.name) if name in columns else (first, path.name)
        raise ValueError(f"{has} has the column {name!r}, but {has_not} does not; give all shards the same columns")
