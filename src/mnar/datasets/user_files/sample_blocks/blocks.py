"""The interface of every source of new samples: blocks of encoded samples, in the order of the source."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

ROWS_PER_BLOCK = 8192


class SampleBlock(NamedTuple):
    """Some consecutive samples."""

    x: npt.NDArray[Any]  # encoded: float32 [n, d] or uint8 [n, channels, height, width]
    names: Sequence[str]  # how result files call the samples: "line 7", or a path
    row_numbers: npt.NDArray[np.int64]  # rows of the source from 1, without a header
    ids: Sequence[str] | None = None  # the cells of the id column, if the user named one
    problems: Mapping[int, str] = MappingProxyType({})  # by position in the block: why a sample cannot be read


Blocks = Generator[SampleBlock, None, None]  # an iterator that can be closed


class SampleBlocks(Protocol):
    """Samples that are read block by block. A block depends on its position alone, not on where the reading starts."""

    num_rows: int | None  # None: unknown before the last block
    can_start_anywhere: bool  # whether `blocks(first_row)` starts without reading the rows before it
    id_name: str | None  # the name of the id column, if the user named one
    notes: list[str]  # what was left out or looks odd; complete after the last block

    def blocks(self, first_row: int = 0) -> Blocks:
        """Yield the blocks from `first_row` on, which is where an earlier block ended. Beyond the last row, yield none.

        All blocks of a file but its last one have ROWS_PER_BLOCK rows. A sample that cannot be read, such as a damaged
        image, is in its block as well; `problems` says why. The notes are complete when the iterator is closed.
        """

    def every_nth(self, every: int, first: int = 0) -> npt.NDArray[Any]:
        """Return the encoded samples in the rows `first`, `first + every`, ...; `first` is less than `every`."""


def evenly_spread(samples: SampleBlocks, most: int) -> npt.NDArray[Any]:
    """Return at most `most` encoded samples that are spread evenly over the source, to estimate its class mix."""
    assert samples.num_rows is not None
    return samples.every_nth(-(-samples.num_rows // most))  # the quotient is rounded up
