"""Read the arrays of an .npz file, and bring samples into one of two layouts."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CHANNELS = (1, 3)  # grey or colour; the user must drop a transparency channel


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of the file. An array of Python objects is an error: unpickling it could run code."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a complete .npz file of plain arrays ({numpy_problem(error)}); write the file again "
            "with numpy.savez"
        ) from error


def numpy_problem(error: Exception) -> str:
    """Return numpy's text of the problem with a file, unless it recommends to unpickle the file, which could run code.

    numpy takes every file that it does not recognise for a pickle.
    """
    text = " ".join(str(error).split())
    return "the file contains something else than arrays of numbers or texts" if "pickle" in text else text


def samples(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return images as uint8 [n, c, h, w] and a table as float32 [n, features].

    `name` is what an error message calls the array.
    """
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"{name} has no rows; give at least one sample")
    if values.ndim == 2:
        return _features(values, name)
    if values.dtype != np.uint8:
        raise ValueError(f"{name} has type {values.dtype}; give images as uint8, 0 to 255")
    if values.ndim == 3:
        return np.ascontiguousarray(values[:, None])
    if values.ndim == 4 and values.shape[1] in CHANNELS:
        return np.ascontiguousarray(values)
    if values.ndim == 4 and values.shape[3] in CHANNELS:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    raise ValueError(
        f"{name} has shape {values.shape}; give tables as [n, features], "
        f"images as [n, h, w], [n, h, w, c] or [n, c, h, w] with c in {CHANNELS}"
    )


def _features(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    """Return a table as float32, or raise an error that names the first cell that is not a finite number."""
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name} has type {values.dtype}; give a table of numbers")
    table = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(table)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"{name}[{row}, {column}] is {values[row, column]}, not a finite number; fill in the cell or remove the row"
        )
    return table
