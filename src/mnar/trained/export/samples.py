"""The inputs of an exported program, and made-up samples with which the export is checked."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.run.model_file import ModelInput

Kind = Literal["images", "table", "features"]
Arrays = tuple[npt.NDArray[Any], ...]  # one array per input of the program
SHARE_MISSING = 0.1


class Input(NamedTuple):
    """One input of an exported program."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one sample


def kind_of(inputs: ModelInputs) -> Kind:
    """Return what the program takes."""
    if inputs.image_shape is not None:
        return "images"
    return "features" if inputs.encoder is None else "table"


def inputs_of(inputs: ModelInputs) -> tuple[Input, ...]:
    """Return the inputs of the program, in order."""
    if inputs.encoder is None:
        dtype = "uint8" if inputs.image_shape is not None else "float32"
        return (Input(kind_of(inputs), dtype, inputs.input_shape),)
    numbers = Input("numbers", "float64", (len(inputs.encoder.numeric_names),))
    categories = Input("categories", "int64", (len(inputs.encoder.categorical_names),))
    return tuple(one for one in (numbers, categories) if one.shape != (0,))


def made_up_samples(inputs: ModelInputs, stored: ModelInput, count: int, rng: np.random.Generator) -> Arrays:
    """Return random samples of the kind that the model takes."""
    if inputs.image_shape is not None:
        return (_images(inputs.image_shape, count, rng),)
    if inputs.encoder is None:
        mean, std = np.array(stored["mean"]), np.array(stored["std"])
        return (rng.normal(mean, std, (count, len(mean))).astype(np.float32),)
    return _table(inputs.encoder, count, rng)


def encoded(inputs: ModelInputs, samples: Arrays) -> npt.NDArray[Any]:
    """Return samples of the program in the form that the model of the run takes."""
    if inputs.encoder is None:
        return samples[0]
    encoder, num_rows = inputs.encoder, len(samples[0])
    numbers = samples[0] if encoder.numeric_names else np.zeros((num_rows, 0))
    codes = samples[-1] if encoder.categorical_names else np.zeros((num_rows, 0), np.int64)
    # The code after the last level stands for a text that the encoder does not know.
    categories = tuple((*levels, "".join(levels) + "?") for levels in encoder.levels)
    finite = np.where(np.isinf(numbers), np.nan, numbers)
    table = Table(finite, codes, encoder.numeric_names, encoder.categorical_names, categories)
    return encoder.transform(table)


def unknown_code(encoder: TableEncoder, column: int) -> int:
    """Return the code of a text that is no level of the categorical column: "other", or missing if there was none."""
    return len(encoder.levels[column]) if encoder.had_others[column] else -1


def _images(shape: tuple[int, int, int], count: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return smooth random images with some noise; the first two are black and white."""
    channels, height, width = shape
    images = np.zeros((count, *shape), np.uint8)
    down, right = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)
    for image in images[2:]:
        corners = rng.uniform(0, 255, (4, channels, 1, 1))
        smooth = corners[0] * down + corners[1] * (1 - down) + corners[2] * right + corners[3] * (1 - right)
        image[:] = np.clip(smooth / 2 + rng.normal(0, 20, shape), 0, 255)
    images[1:2] = 255
    return images


def _table(encoder: TableEncoder, count: int, rng: np.random.Generator) -> Arrays:
    """Return random columns, some cells of which are missing or have an unknown category."""
    columns: list[npt.NDArray[Any]] = []
    if encoder.numeric_names:
        numbers = rng.normal(encoder.means, encoder.stds, (count, len(encoder.means)))
        numbers[rng.random(numbers.shape) < SHARE_MISSING] = np.nan
        columns.append(numbers)
    if encoder.categorical_names:
        ends = [len(levels) + had for levels, had in zip(encoder.levels, encoder.had_others, strict=True)]
        codes = rng.integers(-1, np.maximum(ends, 0), (count, len(ends)))
        columns.append(codes.astype(np.int64))
    return tuple(columns)
