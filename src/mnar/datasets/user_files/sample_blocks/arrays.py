"""Blocks of new samples that are an array: images or features, in memory or in an .npy or .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.npz_file import read_npy, read_npz, samples
from mnar.datasets.user_files.arrays import SAMPLES
from mnar.datasets.user_files.image_decode import resized
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.number_columns import without_infinity
from mnar.datasets.user_files.partly_labeled import RowNames, Table
from mnar.datasets.user_files.sample_blocks.blocks import ROWS_PER_BLOCK, Blocks, SampleBlock


class ArrayBlocks:
    """Blocks of an array: images uint8 [n, h, w], [n, h, w, c] or [n, c, h, w], or numbers [n, features].

    where          what error messages call the array
    names          how result files call the samples; None: "row 1", "row 2", ...
    row_numbers    rows of the user's file
    rows           the rows of the array to read, ascending; None: all. The other arguments are those of all rows
    """

    can_start_anywhere = True

    def __init__(
        self,
        x: npt.NDArray[Any],
        like: ModelInputs,
        *,
        where: str = "the array",
        names: Sequence[str] | None = None,
        row_numbers: npt.NDArray[np.int64] | None = None,
        ids: Sequence[str] | None = None,
        id_name: str | None = None,
        rows: npt.NDArray[np.integer] | None = None,
    ) -> None:
        if x.ndim == 0 or len(x) == 0:
            raise ValueError(f"{where} has no rows; give at least one sample")
        if like.image_shape is not None and x.ndim == 3 and x.shape[2] <= 4 < like.image_shape[2]:
            raise ValueError(f"{where} has shape {x.shape}, which is one image; give a batch of images, array[None]")
        self.x, self.like, self.where = x, like, where
        self.rows = np.arange(len(x)) if rows is None else rows
        self.row_numbers = np.arange(1, len(x) + 1) if row_numbers is None else row_numbers
        self.names = RowNames("row", self.row_numbers) if names is None else names
        self.ids, self.id_name = ids, id_name
        self.num_rows: int | None = len(self.rows)
        self.notes: list[str] = []
        self.take(self.rows[:1])  # an array of another kind is refused now and not in the first block

    def blocks(self, first_row: int = 0) -> Blocks:
        for start in range(first_row, len(self.rows), ROWS_PER_BLOCK):
            rows = self.rows[start : start + ROWS_PER_BLOCK]
            names = [self.names[row] for row in rows]
            ids = None if self.ids is None else [self.ids[row] for row in rows]
            yield SampleBlock(self.take(rows), names, self.row_numbers[rows], ids)

    def every_nth(self, every: int, first: int = 0) -> npt.NDArray[Any]:
        chosen = self.rows[first::every]
        if len(chosen) == 0:
            return self.take(chosen)
        return np.concatenate([self.take(rows) for rows in np.array_split(chosen, 8) if len(rows)])

    def take(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        """Return some rows of the array, encoded. The rows are ascending."""
        if len(rows) == 0:
            return np.zeros((0, *self.like.input_shape), np.float32)
        values, like = copied_rows(self.x, rows), self.like
        if like.encoder is not None:
            return like.encoder.transform(_as_table(values, like, f"{self.where} has shape {self.x.shape}"))
        x = samples(values, self.where)
        if like.image_shape is not None and x.ndim == 4:
            x = resized(x, like.image_shape)
        if x.shape[1:] != like.input_shape:
            raise ValueError(
                f"{self.where} has samples of shape {tuple(x.shape[1:])}, but the model takes {like.in_words}; give "
                "data of the same kind as in training"
            )
        return x


def read_array_file(path: Path, like: ModelInputs, *, id: str | None = None) -> ArrayBlocks:
    """Open an .npy file, which is memory-mapped, or read the samples of an .npz file."""
    if path.suffix.lower() == ".npy":
        if id is not None:
            raise ValueError(f"{path} is one array and has no column {id!r}; leave out --id")
        return ArrayBlocks(read_npy(path), like, where=str(path))
    arrays = read_npz(path)
    found = [name for name in SAMPLES if name in arrays]
    if len(found) != 1:
        raise ValueError(f"{path} has the arrays {', '.join(sorted(arrays)) or 'none'}; call the samples x")
    if id is not None and id not in arrays:
        raise ValueError(f"{path} has no array {id!r} of ids, only {', '.join(sorted(arrays))}; name one of these")
    x, ids = arrays[found[0]], None if id is None else [str(value) for value in arrays[id].tolist()]
    if ids is not None and len(ids) != len(x):
        raise ValueError(f"{path}: {found[0]} has {len(x)} rows and {id} has {len(ids)}; give one id per row")
    blocks = ArrayBlocks(x, like, where=f"{path}: {found[0]}", ids=ids, id_name=id)
    blocks.can_start_anywhere = False  # the file is read as a whole
    return blocks


def copied_rows(x: npt.NDArray[Any], rows: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
    """Return some rows of an array, ascending. Rows of a memory-mapped file are copied through a mapping of their own.

    The pages that one long-lived mapping has read stay in memory, until the process seems to use as much as the file.
    """
    first, last = int(rows[0]), int(rows[-1])
    is_range = last - first + 1 == len(rows)
    index: Any = slice(None) if is_range else rows - first
    if not isinstance(x, np.memmap) or x.filename is None or not x.flags.c_contiguous:
        rows_in_memory: npt.NDArray[Any] = x[first : last + 1][index]
        return rows_in_memory
    bytes_per_row = x.dtype.itemsize * int(np.prod(x.shape[1:], dtype=np.int64))
    shape = (last - first + 1, *x.shape[1:])
    mapped = np.memmap(x.filename, x.dtype, "r", offset=x.offset + first * bytes_per_row, shape=shape)
    return np.array(mapped[index])  # an index of single rows reads only their pages


def _as_table(values: npt.NDArray[Any], like: ModelInputs, description: str) -> Table:
    """Return numbers as the columns of the model, by position. The model must have no column of texts.

    `description` is the beginning of an error message.
    """
    assert like.encoder is not None
    names, texts = like.encoder.numeric_names, like.encoder.categorical_names
    if values.ndim != 2 or values.dtype.kind not in "iuf" or texts or values.shape[1] != len(names):
        wanted = f"the columns {', '.join([*names, *texts])}"
        raise ValueError(
            f"{description} and type {values.dtype}, but the model takes {wanted}; give a DataFrame or a table with "
            f"these columns{'' if texts else ', or an array of numbers with one column for each'}"
        )
    return Table(
        without_infinity(values.astype(np.float64)), np.empty((len(values), 0), np.int64), tuple(names), (), ()
    )
