"""Recognise what the new samples are, and open them with the right reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_files import SUFFIXES as IMAGE_SUFFIXES
from mnar.datasets.user_files.image_files import images_under
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
from mnar.datasets.user_files.read_data import HUGGINGFACE, TABLE_SUFFIXES
from mnar.datasets.user_files.read_data_like import read_data_like
from mnar.datasets.user_files.sample_blocks.arrays import ArrayBlocks, read_array_file
from mnar.datasets.user_files.sample_blocks.blocks import SampleBlocks
from mnar.datasets.user_files.sample_blocks.images import ImageBlocks, open_images
from mnar.datasets.user_files.sample_blocks.names import sample_names
from mnar.datasets.user_files.sample_blocks.shards import ARRAY_SHARDS, TABLE_SHARDS, Map, ShardBlocks, shards_in
from mnar.datasets.user_files.sample_blocks.tables import TableBlocks

ARRAY_SUFFIXES = (".npy", ".npz")


def open_samples(
    source: Any,
    like: ModelInputs,
    *,
    ignore: Sequence[str] = (),
    id: str | None = None,
    features: Path | None = None,
    over: Map = map,
) -> SampleBlocks:
    """Open new samples for a trained model.

    source      a path (a table, an array file, an image, a folder of images, a folder of shards, a Hugging Face data
                set), a list of image paths, an array, or a DataFrame
    like        what the model takes
    ignore      columns of a table that are not read
    id          a column that identifies the samples
    features    an .npy file with one row per sample of the source, for a model that was trained with --features
    over        calls a function for each shard of a folder
    """
    if features is not None:
        return _with_features(_existing(Path(source)), Path(features), like, ignore, id)
    if isinstance(source, str | Path):
        path, open_file = Path(source), partial(_open_path, like=like, ignore=tuple(ignore), id=id)
        shards = shards_of(path, like)
        return ShardBlocks(path, shards, open_file, id=id, over=over) if shards else open_file(path)
    if isinstance(source, Sequence) and len(source) == 0:
        raise ValueError("there are no samples to predict; give at least one")
    if isinstance(source, Sequence) and all(isinstance(path, str | Path) for path in source):
        return ImageBlocks([_existing(Path(path)) for path in source], like)
    if isinstance(source, Mapping) or hasattr(source, "columns") or hasattr(source, "column_names"):
        if like.encoder is None and hasattr(source, "to_numpy"):
            return ArrayBlocks(source.to_numpy(), like)
        return TableBlocks(source, like, ignore=ignore, id=id)
    return ArrayBlocks(np.asarray(source), like)


def blocks_of(data: PartlyLabeled, rows: npt.NDArray[np.integer], like: ModelInputs) -> ArrayBlocks:
    """Return blocks of some rows of data that were read already and encoded for the model."""
    if isinstance(data.x, Table):
        raise TypeError("the table is not encoded; read it with read_data_like")
    numbers = np.asarray(data.row_numbers if len(data.row_numbers) else np.arange(1, len(data.y) + 1))
    return ArrayBlocks(
        data.x,
        ModelInputs(like.input_shape, like.class_names),  # without the encoder of the table
        names=data.row_names,
        row_numbers=numbers,
        ids=data.ids,
        id_name=data.id_name,
        rows=rows,
    )


def shards_of(source: Path, like: ModelInputs) -> list[Path]:
    """Return the files of a folder of shards for this model; none if the source is something else.

    A model of images takes a folder that contains images as a folder of images, even if there are arrays beside them.
    """
    if not source.is_dir() or _is_huggingface(source):
        return []
    found = shards_in(source, ARRAY_SHARDS if like.encoder is None else (*TABLE_SHARDS, *ARRAY_SHARDS))
    if found and like.image_shape is not None:
        has_csv = any(path.suffix.lower() == ".csv" for path in source.iterdir())
        return [] if has_csv or images_under(source) else found
    return found


def _open_path(source: Path, like: ModelInputs, ignore: Sequence[str], id: str | None) -> SampleBlocks:
    suffix = _existing(source).suffix.lower()
    if _is_huggingface(source):
        return _read_whole(source, like, {"ignore": tuple(ignore), "id": id})
    if suffix in ARRAY_SUFFIXES:
        return read_array_file(source, like, id=id)
    if like.image_shape is not None and (source.is_dir() or suffix in (*TABLE_SUFFIXES, *IMAGE_SUFFIXES)):
        return open_images(source, like, id=id)
    if suffix in TABLE_SUFFIXES and like.encoder is not None:
        return TableBlocks(source, like, ignore=ignore, id=id)
    kinds = "an .npy or .npz file, or the data and their features with --features"
    if like.image_shape is not None:
        kinds = "a folder of images, an image, a CSV file that lists images, or an .npy or .npz file"
    elif like.encoder is not None:
        kinds = f"a table ({', '.join(TABLE_SUFFIXES)}), or a folder of such files"
    raise ValueError(f"{source} is no data for this model, which takes {like.in_words}; give {kinds}")


def _is_huggingface(source: Path) -> bool:
    return source.is_dir() and any((source / name).exists() for name in HUGGINGFACE)


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}; check the path")
    return path


def _with_features(
    source: Path, features: Path, like: ModelInputs, ignore: Sequence[str], id: str | None
) -> SampleBlocks:
    """Take the samples from the array of features, and their names from the source."""
    if like.image_shape is not None or like.encoder is not None:
        raise ValueError(
            f"--features is for a run that was trained with --features, but the model takes {like.in_words}; leave out "
            "--features"
        )
    if _is_huggingface(source):
        return _read_whole(source, like, {"features": features, "id": id})
    x = read_array_file(features, like).x
    named = sample_names(source, len(x), ignore=ignore, id=id)
    if len(named.names) != len(x):
        raise ValueError(
            f"{features} has {len(x):,} rows, but {source} has {len(named.names):,} samples; compute the features of "
            f"{source} again with mnar features"
        )
    blocks = ArrayBlocks(
        x,
        like,
        where=str(features),
        names=named.names,
        row_numbers=named.row_numbers,
        ids=named.ids,
        id_name=id,
    )
    blocks.notes += named.notes
    return blocks


def _read_whole(source: Path, like: ModelInputs, options: Mapping[str, Any]) -> SampleBlocks:
    """Read a source that cannot be read block by block."""
    encoding = None if like.encoder is None else like.encoder.to_dict()
    reading = {name: value for name, value in options.items() if value}
    data = read_data_like(
        source, input_shape=like.input_shape, class_names=like.class_names, encoding=encoding, **reading
    )
    blocks = blocks_of(data, np.arange(len(data.y)), like)
    blocks.notes += data.notes
    return blocks
