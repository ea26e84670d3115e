"""Names and row numbers of new samples whose features are in another file: no image is decoded for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.npz_file import read_npy, read_npz
from mnar.datasets.user_files.arrays import SAMPLES, one_of
from mnar.datasets.user_files.columns import read_columns
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.image_files import SUFFIXES as IMAGE_SUFFIXES
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.datasets.user_files.read_data import kind_and_reader
from mnar.datasets.user_files.sample_blocks.images import open_images
from mnar.datasets.user_files.table import read_table

ANY_IMAGE = ModelInputs((1, 8, 8), ())  # small, for readers that only look whether an image can be decoded


class SampleNames(NamedTuple):
    """How result files call the samples of a source."""

    names: Sequence[str]
    row_numbers: npt.NDArray[np.int64]
    ids: Sequence[str] | None = None
    notes: Sequence[str] = ()

    def rows(self, rows: Sequence[int]) -> SampleNames:
        """Return some of the samples."""
        ids = None if self.ids is None else [self.ids[row] for row in rows]
        return SampleNames([self.names[row] for row in rows], self.row_numbers[list(rows)], ids, self.notes)


def sample_names(source: Path, num_rows: int, *, ignore: Sequence[str] = (), id: str | None = None) -> SampleNames:
    """Return the names of the samples in `source`, in the order in which `mnar features` writes their features.

    num_rows    the number of rows of the features; if it is not the number of images, the images are decoded, because
                `mnar features` leaves out images that cannot be read
    ignore      columns that are not read: a table may have an ignored column called "path"
    id          a column that identifies the samples
    """
    suffix = source.suffix.lower()
    if source.is_file() and suffix in (".npy", ".npz"):
        return _of_arrays(source, id)
    is_image = source.is_file() and suffix in IMAGE_SUFFIXES
    if not is_image and kind_and_reader(source, tuple(ignore), False)[1] is read_table:
        columns = read_columns(source, as_text=() if id is None else (id,))
        columns.require([] if id is None else [id])
        ids, notes = identifiers(None if id is None else columns.text(id), columns.where)
        return SampleNames(columns.row_names, np.asarray(columns.row_numbers), ids, (*columns.notes, *notes))
    images = open_images(source, ANY_IMAGE, id=id)
    found = SampleNames(images.names, images.row_numbers, images.ids, images.notes)
    if len(images.paths) == num_rows:
        return found
    readable, start = list[int](), 0
    for block in images.blocks():
        readable += [start + place for place in range(len(block.names)) if place not in block.problems]
        start += len(block.names)
    return found.rows(readable)._replace(notes=images.notes)


def _of_arrays(path: Path, id: str | None) -> SampleNames:
    if path.suffix.lower() == ".npy":
        if id is not None:
            raise ValueError(f"{path} is one array and has no column {id!r}; leave out --id")
        num_rows, ids = len(read_npy(path)), None
    else:
        arrays = read_npz(path)
        name = one_of(SAMPLES, arrays, path)
        wrong = [what for what in ("x" if name is None else name, id) if what is not None and what not in arrays]
        if wrong:
            raise ValueError(f"{path} has no array {wrong[0]!r}, only {', '.join(sorted(arrays))}; name one of these")
        assert name is not None
        num_rows = len(arrays[name])
        ids = None if id is None else [str(value) for value in arrays[id].tolist()]
        if ids is not None and len(ids) != num_rows:
            raise ValueError(f"{path}: {name} has {num_rows} rows and {id} has {len(ids)}; give one id per row")
    numbers = np.arange(1, num_rows + 1)
    return SampleNames(RowNames("row", numbers), numbers, ids)
