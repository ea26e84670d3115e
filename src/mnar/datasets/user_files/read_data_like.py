"""Read other data for a trained model: with the columns, categories, classes and image size that the model knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
from mnar.datasets.user_files.read_data import read_data
from mnar.datasets.user_files.table_encoder import TableEncoder


def read_data_like(
    source: Path,
    *,
    input_shape: Sequence[int],
    class_names: Sequence[str],
    encoding: Mapping[str, Any] | None = None,
    **reading: Any,
) -> PartlyLabeled:
    """Read `source` as samples of a trained model. Nothing is fitted to the new data.

    input_shape  the shape of one sample of the model: (features,) or (channels, height, width)
    class_names  the classes of the model; labels are matched with them by name
    encoding     the stored encoding of a table, from `TableEncoder.to_dict`
    reading      the options of `read_data`

    The samples in the result are encoded: float32 [n, features] or uint8 [n, channels, height, width]. The columns of a
    table are found by name. A column that the model does not know is not used, and a column that is missing is an
    error. A new category counts as "other", or as missing if the model knows no "other". Images are resized. A label
    that is no class of the model is an error. The label column may be missing; then no sample has a label.
    """
    encoder = None if encoding is None else TableEncoder.from_dict(encoding)
    like = ModelInputs(tuple(input_shape), tuple(class_names), encoder)
    data = read_data(source, **reading, like=like)
    x = _encoded(data, like, source)
    if x.shape[1:] != like.input_shape:
        raise ValueError(
            f"{source} has samples of shape {tuple(x.shape[1:])}, but the model takes {like.in_words}, shape "
            f"{like.input_shape}; give data of the same kind as in training"
        )
    return data._replace(x=x)


def _encoded(data: PartlyLabeled, like: ModelInputs, source: Path) -> npt.NDArray[Any]:
    """Return the samples as the model takes them."""
    x = data.x
    if like.encoder is not None and not isinstance(x, Table) and x.ndim == 2:
        x = Table.of_numbers(x.astype(np.float64))  # an .npz file without a missing value, for a model that had some
    if not isinstance(x, Table):
        return x
    if like.encoder is None:
        raise ValueError(
            f"{source} is a table or has missing values, but the model takes {like.in_words}; give data of the same "
            "kind as in training, with --features if the model was trained with --features"
        )
    return like.encoder.transform(x)
