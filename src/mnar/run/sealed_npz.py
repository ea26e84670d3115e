"""Arrays in an .npz file with a digest, so that a damaged or changed file is recognised."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mnar.atomic_write import DIGEST, Changed, sealed, unsealed, write_atomically
from mnar.datasets.npz_file import read_npz


def write_sealed_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **sealed({name: np.asarray(value) for name, value in arrays.items()}))
    write_atomically(path, buffer.getvalue())


def read_sealed_npz(path: Path, *, needs_digest: bool) -> dict[str, Any]:
    """Read the arrays. Raise `Changed` if they are not those that were written.

    Earlier versions wrote no digest. Without `needs_digest`, such a file is read without a check.
    """
    arrays: dict[str, Any] = read_npz(path)
    if DIGEST in arrays:
        return unsealed({**arrays, DIGEST: str(arrays[DIGEST])})
    if needs_digest:
        raise Changed("its digest is missing")
    return arrays
