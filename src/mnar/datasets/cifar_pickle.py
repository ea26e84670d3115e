"""Reads the pickles that CIFAR is published as, without letting them call anything.

A pickle names the functions that rebuild its objects. Here numpy's are replaced by two inert records, every
other name is refused, and the bytes become an array only after the file has been read to its end.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class PickledDtype:
    def __init__(self, code: str, *flags: object) -> None:
        if code != "u1":
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, not of bytes")

    def __setstate__(self, state: object) -> None:
        pass


class PickledArray:
    def __init__(self, *arguments: object) -> None:
        pass

    def __setstate__(self, state: tuple[int, tuple[int, ...], PickledDtype, bool, bytes | str]) -> None:
        _, self.shape, _, self.by_column, self.content = state

    def array(self) -> npt.NDArray[np.uint8]:
        # Python 2 strings, which the official files hold, arrive as latin-1 text
        content = self.content.encode("latin-1") if isinstance(self.content, str) else self.content
        return np.frombuffer(content, np.uint8).reshape(self.shape, order="F" if self.by_column else "C")


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledDtype,
}


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR does not need; nothing was run")
        return STAND_INS[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """A dictionary of byte arrays, lists, texts and numbers, or an error that names the file."""
    try:
        with path.open("rb") as file:
            entries = PlainUnpickler(file, encoding="latin-1").load()
        return {key: value.array() if isinstance(value, PickledArray) else value for key, value in entries.items()}
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{path} is not a whole CIFAR file ({error}); get it again") from error
