"""Arrays in an .npz file, and the shapes that samples may have there."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CHANNELS = (1, 3)  # grey or colour; a transparency channel must be dropped first


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of the file; one that would have to be unpickled is refused."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a whole .npz file of plain arrays ({error}); write it again with numpy.savez"
        ) from error


def samples(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Images as [n, c, h, w], a table as float32."""
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"{name} has no rows; give one sample or more")
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
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name} has type {values.dtype}; give a table of numbers")
    table = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(table)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(f"{name}[{row}, {column}] is {values[row, column]}; fill it in or leave the row out")
    return table
