"""Read the samples of data of any kind, with or without labels. The labels are not read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from mnar.datasets.npz_file import read_npy, read_npz
from mnar.datasets.user_files import Table, read_data
from mnar.datasets.user_files.all_images import load_all_images
from mnar.datasets.user_files.arrays import SAMPLES, one_of, read_arrays, samples_or_table, tensor_of
from mnar.datasets.user_files.class_folders import read_class_folders
from mnar.datasets.user_files.columns import read_columns
from mnar.datasets.user_files.huggingface import read_huggingface
from mnar.datasets.user_files.image_files import SUFFIXES as IMAGE_SUFFIXES
from mnar.datasets.user_files.label_values import label_column, label_names
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import PartlyLabeled, RowNames
from mnar.datasets.user_files.read_data import kind_and_reader
from mnar.datasets.user_files.sample_blocks import open_samples
from mnar.datasets.user_files.table import features_of, read_table
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.types import OnProgress

NO_LABEL = "\0"  # no column has this name, so that the reader of Hugging Face data sets reads no label


class Samples(NamedTuple):
    """Samples without labels, as a network takes them."""

    x: Tensor
    names: Sequence[str]
    notes: tuple[str, ...]
    encoder: TableEncoder | None = None  # how the columns of a table were encoded


def read_samples(
    source: Path,
    *,
    like: ModelInputs | None = None,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    unlabeled: Collection[str] = (),
    size: int | None = None,
    id: str | None = None,
    progress: OnProgress | None = None,
) -> Samples:
    """Return the samples in the order in which `mnar train` and `mnar predict` read them.

    like    earlier samples, whose image shape or encoding of columns the new samples get

    The other options are those of `read_data`. An option that does not apply to this kind of source is an error.
    """
    if not source.exists():
        raise FileNotFoundError(f"no data at {source}; check the path")
    suffix = source.suffix.lower()
    read: Callable[..., PartlyLabeled]
    if source.is_file() and suffix in IMAGE_SUFFIXES:
        kind, read = "an image", read_class_folders
    elif source.is_file() and suffix == ".npy":
        kind, read = "an .npy file", read_arrays
    else:
        kind, read = kind_and_reader(source, ignore, like is not None and like.encoder is not None)
    options = {"label": label, "ignore": ignore, "unlabeled": unlabeled, "size": size, "id": id}
    given = [name for name, value in options.items() if value]
    refused = [f"--{name}" for name in given if name not in signature(read).parameters]
    if refused:
        raise ValueError(f"{source} is {kind}, to which {' and '.join(refused)} cannot be applied; leave it out")
    if read is read_huggingface:
        return _huggingface(source, like, label, (*ignore, *([] if id is None else [id])), unlabeled, size)
    if read is read_table or read is read_arrays:
        if like is not None:
            return _like(source, like, ignore)
        return _table(source, label, {*ignore, id}, progress) if read is read_table else _array(source)
    return _images(source, like, size, progress)


def _images(source: Path, like: ModelInputs | None, size: int | None, progress: OnProgress | None) -> Samples:
    """Read a folder of images, with or without class folders, a CSV file that lists images, or one image."""
    if like is not None and like.image_shape is None:
        raise ValueError(f"{source} holds images, but the features of --like come from {like.in_words}; leave it out")
    shape = None if like is None else like.image_shape
    images, names = load_all_images(source, size=size, shape=shape, progress=progress)
    return Samples(tensor_of(images.x), names, images.notes)


def _table(source: Path, label: str | None, left_out: Collection[str | None], progress: OnProgress | None) -> Samples:
    """Read and encode the columns of a table as `mnar train` does. The label column is left out, and may be empty."""
    columns = read_columns(source, progress=progress)
    columns.require([name for name in (label, *left_out) if name is not None])
    names = [name for name in columns.names if name not in left_out]
    if label is None and not label_names(names):  # the labels may have an unusual name, and must not be inputs
        raise ValueError(
            f"{columns.where} has no column with a usual name of a label column; name it with --label. If these are "
            "new data without labels, name the features of the training data with --like"
        )
    if label is None:
        label = label_column(names, columns.where)
    table, notes = features_of(replace(columns, cells={name: columns.cells[name] for name in names if name != label}))
    return _encoded(table, columns.row_names, [*columns.notes, *notes])


def _array(source: Path) -> Samples:
    """Read the samples of an .npz or .npy file."""
    if source.suffix.lower() == ".npy":
        arrays, name = {"x": np.asarray(read_npy(source))}, "x"
    else:
        arrays = read_npz(source)
        found = one_of(SAMPLES, arrays, source)
        if found is None:
            raise ValueError(f"{source} has the arrays {', '.join(sorted(arrays)) or 'none'}; call the samples x")
        name = found
    x, notes = samples_or_table(arrays[name], f"{source}: {name}")
    return _encoded(x, RowNames("row", range(1, len(x) + 1)), notes)


def _huggingface(
    source: Path,
    like: ModelInputs | None,
    label: str | None,
    ignore: tuple[str, ...],
    unlabeled: Collection[str],
    size: int | None,
) -> Samples:
    """Read a Hugging Face data set. A table needs a label column, unless an earlier encoding is given."""
    data = read_huggingface(source, label=NO_LABEL, ignore=ignore, size=size, like=like or ModelInputs((), ()))
    if like is None and isinstance(data.x, Table):
        data = read_data(source, label=label, ignore=ignore, unlabeled=tuple(unlabeled))
    return _encoded(data.x, data.row_names, data.notes, None if like is None else like.encoder)


def _like(source: Path, like: ModelInputs, ignore: Sequence[str]) -> Samples:
    """Read a table or an array with the columns or the shape of earlier samples."""
    opened = open_samples(source, like, ignore=ignore)
    blocks = list(opened.blocks())
    names = [name for block in blocks for name in block.names]
    return Samples(tensor_of(np.concatenate([block.x for block in blocks])), names, tuple(opened.notes), like.encoder)


def _encoded(x: object, names: Sequence[str], notes: Sequence[str], encoder: TableEncoder | None = None) -> Samples:
    """Encode a table, with an encoder that is fitted to the table if none is given."""
    if isinstance(x, Table):
        encoder = encoder or TableEncoder.fit(x)
        x = encoder.transform(x)
    assert isinstance(x, np.ndarray)
    return Samples(tensor_of(x), names, tuple(notes), encoder)
