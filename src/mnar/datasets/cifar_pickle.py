"""Read the pickle files in which CIFAR is published, without running any code that a pickle names.

A pickle names the functions that rebuild its objects. This reader replaces numpy's functions by two classes that only
store their arguments, and refuses every other name. The bytes become an array only after the whole file has been read.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class PickledDtype:
    """Stands in for numpy.dtype, and accepts the type of bytes only."""

    def __init__(self, code: str, *flags: object) -> None:
        if code != "u1":
            raise pickle.UnpicklingError(f"the pickle contains an array of {code!r} instead of bytes")

    def __setstate__(self, state: object) -> None:
        pass


class PickledArray:
    """Stands in for numpy.ndarray, and stores the shape and the bytes of the array."""

    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: tuple[int, tuple[int, ...], PickledDtype, bool, bytes | str]) -> None:
        _, self.shape, _, self.by_column, self.content = state

    def array(self) -> npt.NDArray[np.uint8]:
        # The official files contain Python 2 strings, which arrive as latin-1 text.
        content = self.content.encode("latin-1") if isinstance(self.content, str) else self.content
        return np.frombuffer(content, np.uint8).reshape(self.shape, order="F" if self.by_column else "C")


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledDtype,
}


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that looks up the names in `STAND_INS` only."""

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(
                f"the pickle asks for {module}.{name}, which CIFAR does not need; nothing was run"
            )
        return STAND_INS[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the pickled dictionary of byte arrays, lists, texts and numbers, or raise an error that names the file."""
    try:
        with path.open("rb") as file:
            entries = PlainUnpickler(file, encoding="latin-1").load()
        return {key: value.array() if isinstance(value, PickledArray) else value for key, value in entries.items()}
    except Exception as error:  # a damaged pickle can raise any exception
        raise ValueError(f"{path} is not a complete CIFAR file ({error}); get a new copy of the file") from error
