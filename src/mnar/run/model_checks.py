"""Checks of what a model file says about its samples, so that a damaged file gives an error and no wrong prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from mnar.datasets.user_files.table_encoder import TableEncoder

LARGEST_INPUT = 10**8  # numbers in one sample; a larger shape in a damaged file could ask for all memory
LONGEST_PROBLEM = 200  # characters of a problem that an error message repeats


def in_one_line(problem: object) -> str:
    """Return the text of an error as one line of limited length; torch lists every tensor on a line of its own."""
    text = " ".join(str(problem).split())
    return text if len(text) <= LONGEST_PROBLEM else f"{text[: LONGEST_PROBLEM - 1]}…"


def check_model_input(stored: Any, wanted: Sequence[str]) -> None:
    """Raise a ValueError that names the entry if the metadata of a model file cannot be true.

    `wanted` are the entries of `mnar.run.model_file.ModelInput`.
    """
    if not isinstance(stored, dict):
        raise ValueError("its metadata are not a JSON object")
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    shape = stored["input_shape"]
    is_shape = isinstance(shape, list) and len(shape) in (1, 3) and all(_is_int(side) and side > 0 for side in shape)
    if not is_shape or math.prod(shape) > LARGEST_INPUT:
        raise _wrong("input_shape", shape, "a list of 1 or 3 positive whole numbers")
    names = stored["class_names"]
    if not _is_list(names, str) or len(names) < 2:
        raise _wrong("class_names", names, "a list of at least two texts")
    for name in ("mean", "std"):  # images: one number per channel; tables: one number per feature
        numbers = stored[name]
        if not _is_finite_list(numbers) or len(numbers) != shape[0]:
            raise _wrong(name, numbers, f"a list of {shape[0]} finite numbers")
    if min(stored["std"]) <= 0:
        raise _wrong("std", stored["std"], "a list of positive numbers")
    if stored["encoding"] is not None:
        _check_encoding(stored["encoding"], shape)


def _check_encoding(encoding: Any, shape: list[int]) -> None:
    """Check the stored `TableEncoder`, whose encoded columns are the features of the model."""
    names = [field.name for field in fields(TableEncoder)]
    if not isinstance(encoding, dict) or set(encoding) != set(names):
        raise ValueError(f"encoding is not a dict with the entries {', '.join(names)}")
    of_numbers, of_texts = encoding["numeric_names"], encoding["categorical_names"]
    for name, columns in (("numeric_names", of_numbers), ("categorical_names", of_texts)):
        if not _is_list(columns, str):
            raise _wrong(f"encoding.{name}", columns, "a list of texts")
    if len({*of_numbers, *of_texts}) < len(of_numbers) + len(of_texts):
        raise ValueError("encoding has two columns of the same name")
    levels = encoding["levels"]
    if not isinstance(levels, list) or len(levels) != len(of_texts) or not all(_is_list(part, str) for part in levels):
        raise _wrong("encoding.levels", levels, f"{len(of_texts)} lists of texts")
    for name in ("means", "stds"):
        numbers = encoding[name]
        if not _is_finite_list(numbers) or len(numbers) != len(of_numbers):
            raise _wrong(f"encoding.{name}", numbers, f"a list of {len(of_numbers)} finite numbers")
    if min(encoding["stds"], default=1) <= 0:
        raise _wrong("encoding.stds", encoding["stds"], "a list of positive numbers")
    for name in ("numeric_had_missing", "had_others", "categorical_had_missing"):
        columns = of_numbers if name.startswith("numeric") else of_texts
        if not _is_list(encoding[name], bool) or len(encoding[name]) != len(columns):
            raise _wrong(f"encoding.{name}", encoding[name], f"a list of {len(columns)} times true or false")
    alone = encoding["num_levels_alone"]
    if not isinstance(alone, list) or len(alone) != len(levels):
        raise _wrong("encoding.num_levels_alone", alone, f"a list of {len(levels)} whole numbers")
    for number, part in zip(alone, levels, strict=True):
        if not _is_int(number) or not 0 <= number <= len(part):
            raise _wrong("encoding.num_levels_alone", alone, "a list of numbers of levels")
    num_features = len(TableEncoder.from_dict(encoding).feature_names)
    if [num_features] != shape:
        raise ValueError(f"encoding gives {num_features} features, but input_shape is {shape}")


def _wrong(name: str, value: Any, wanted: str) -> ValueError:
    text = str(value)
    return ValueError(f"{name} is {text if len(text) <= 40 else f'{text[:39]}…'}, not {wanted}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_finite_list(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(item, float) or _is_int(item) for item in value) and all(map(_is_finite, value))


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number with too many digits for a float
        return False
