"""Point out samples that look odd: equal samples with different labels, and images of one colour."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table

MAX_NAMED = 5
ROWS_AT_ONCE = 1024  # images may be larger than the memory

Hashes = npt.NDArray[np.uint64]


def oddities(data: PartlyLabeled) -> list[str]:
    """Return notes on contradictory labels and on images without content."""
    notes = _contradictions(data)
    if not isinstance(data.x, Table) and data.x.ndim == 4:
        notes += _constant_images(data.x, data.row_names)
    return notes


def _contradictions(data: PartlyLabeled) -> list[str]:
    """Return a note if equal samples have different labels."""
    labeled = np.flatnonzero(data.y != UNLABELED)
    hashes = _hashes(data.x, labeled)
    order = np.argsort(hashes, kind="stable")
    hashes, rows = hashes[order], labeled[order]
    starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    y = data.y[rows]
    differs = np.minimum.reduceat(y, starts) != np.maximum.reduceat(y, starts)
    if not differs.any():
        return []
    sizes = np.diff(np.append(starts, len(rows)))
    start = starts[differs][0]
    first = rows[start]
    other = rows[start : start + sizes[differs][0]][y[start : start + sizes[differs][0]] != data.y[first]][0]
    return [
        f"{sizes[differs].sum():,} labelled samples are equal to a sample with another label, such as "
        f"{data.row_names[first]} ({data.class_names[data.y[first]]}) and {data.row_names[other]} "
        f"({data.class_names[data.y[other]]}); correct the labels, or add a feature that tells the samples apart"
    ]


def _hashes(x: npt.NDArray[np.generic] | Table, rows: npt.NDArray[np.intp]) -> Hashes:
    """Return a number for each of the rows that is equal for equal samples, and practically only for them."""
    if not isinstance(x, Table) and x.ndim == 4:
        digests = [hashlib.blake2b(x[row].tobytes(), digest_size=8).digest() for row in rows]
        return np.frombuffer(b"".join(digests), np.uint64)
    hashes = np.zeros(len(rows), np.uint64)
    columns = [*x.numeric.T, *x.categorical.T] if isinstance(x, Table) else list(x.T)
    for column in columns:
        values = column[rows].astype(np.float64) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan  # with one bit pattern
        # The steps of splitmix64, which make similar numbers different in all bits. Overflow is intended.
        hashes = (hashes ^ values.view(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return hashes


def _constant_images(x: npt.NDArray[np.generic], row_names: Sequence[str]) -> list[str]:
    """Return a note if all pixels of some images are equal."""
    constant: list[int] = []
    for start in range(0, len(x), ROWS_AT_ONCE):
        block = x[start : start + ROWS_AT_ONCE]
        corner = block[:, :, :1, :1]
        # One pixel in the middle rules out most images, of which the rest is then not read from the disk.
        candidates = np.flatnonzero((block[:, :, block.shape[2] // 2, block.shape[3] // 2] == corner[..., 0, 0]).all(1))
        constant += [start + int(row) for row in candidates if (block[row] == corner[row]).all()]
    if not constant:
        return []
    named = ", ".join(row_names[row] for row in constant[:MAX_NAMED])
    more = f" and {len(constant) - MAX_NAMED:,} more" if len(constant) > MAX_NAMED else ""
    return [f"{len(constant):,} images have the same colour everywhere: {named}{more}; replace or remove these files"]
