"""Read the arrays of .npz and .npy files, and bring samples into one of two layouts.

A file can claim any size and any shape. So the headers are checked before anything is allocated: a claim must agree
with the bytes that the file has, and compressed arrays may not become much larger than the file.
"""

from __future__ import annotations

import math
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

CHANNELS = (1, 3)  # grey or colour; the user must drop a transparency channel
# The arrays of a compressed file may have 256 MiB in all, or this multiple of the size of the file if that is more.
SMALL_ARRAYS, MOST_EXPANSION = 2**28, 100
MOST_ARRAYS = 10_000
ENCRYPTED, PATCHED = 0x1, 0x20  # flags of a member of an archive
HEADER_OF_MEMBER = 30  # the bytes before the name of a member
LAST_CHARACTER, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)  # numbers of characters; surrogates cannot be written to a file


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of the file. An array of Python objects is an error: unpickling it could run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked_members(archive, path.stat().st_size)
            return {member.filename.removesuffix(".npy"): _array_of(archive, member) for member in members}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile and numpy raise many types of exception for a damaged file
        raise ValueError(
            f"{path} is not a complete .npz file of plain arrays ({_problem(error)}); write the file again with "
            "numpy.savez"
        ) from error


def read_npy(path: Path, *, mapped: bool = True) -> npt.NDArray[Any]:
    """Return the array of an .npy file, memory-mapped or read into the memory."""
    try:
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except Exception as error:  # numpy raises many types of exception for a damaged file
        problem = _problem(error)
        raise ValueError(
            f"{path} is not a complete .npy file of numbers ({problem}); write it with numpy.save"
        ) from error
    return array


def _checked_members(archive: zipfile.ZipFile, file_size: int) -> list[zipfile.ZipInfo]:
    """Return the arrays of an archive, after checking what its directory says about them."""
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    if len(members) > MOST_ARRAYS:
        raise ValueError(f"it has {len(members)} arrays, and at most {MOST_ARRAYS} are read")
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two arrays have the same name")
    for member in members:
        if member.flag_bits & ENCRYPTED:
            raise ValueError(f"{member.filename} is encrypted")
        if member.flag_bits & PATCHED or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} is compressed in another way than numpy does")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            raise ValueError(f"the sizes of {member.filename} contradict each other")
    ends = sorted((m.header_offset, m.header_offset + HEADER_OF_MEMBER + m.compress_size) for m in members)
    if any(end > following for (_, end), (following, _) in pairwise([*ends, (archive.start_dir, 0)])):
        raise ValueError("some arrays overlap in the file")
    total, most = sum(member.file_size for member in members), max(SMALL_ARRAYS, MOST_EXPANSION * file_size)
    if total > most:
        raise ValueError(
            f"its arrays have {total / 2**20:,.0f} MiB, but a compressed file of this size may hold at most "
            f"{most / 2**20:,.0f} MiB. A file without compression has no such limit"
        )
    return members


def _array_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    try:
        with archive.open(member) as stream:
            _check_header(stream, member.file_size)
        with archive.open(member) as stream:
            array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        _check_texts(array)
    except Exception as error:
        raise ValueError(f"{member.filename}: {_problem(error)}") from error
    return array


def _check_header(stream: IO[bytes], size: int) -> None:
    """Check the header of an array against the `size` of the header and the values in bytes."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format is not for plain arrays")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject or dtype.names is not None or dtype.itemsize == 0:
        raise ValueError(f"values of type {dtype} are not plain numbers or texts")
    count = math.prod(shape)
    if any(length < 0 for length in shape) or (count == 0 and shape[0] > 0):
        raise ValueError(f"the shape {shape} is not that of an array with values")
    claimed = stream.tell() + count * dtype.itemsize
    if claimed != size:
        raise ValueError(f"an array of shape {shape} and type {dtype} needs {claimed:,} bytes, but there are {size:,}")


def _check_texts(array: npt.NDArray[Any]) -> None:
    """Refuse texts with numbers that are no characters. NumPy would make invalid texts of them."""
    if array.dtype.kind != "U":
        return
    characters = np.frombuffer(array.astype(array.dtype.newbyteorder("="), order="C").tobytes(), np.uint32)
    first, last = SURROGATES
    if np.any((characters > LAST_CHARACTER) | ((characters >= first) & (characters <= last))):
        raise ValueError("a text contains a number that is no character")


def _problem(error: Exception) -> str:
    """Return the text of a problem in one line, unless it recommends to unpickle the file, which could run code."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "the file contains something else than arrays of numbers or texts" if "pickle" in text else text[:300]


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
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, which is an error below
        table = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(table)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        number = values[row, column]
        problem, remedy = "not a finite number", "fill in the cell or remove the row"
        if np.isfinite(number):
            problem, remedy = "too large for float32 (3.4e+38)", "scale the column, or take its logarithm"
        raise ValueError(f"{name}[{row}, {column}] is {number}, {problem}; {remedy}")
    return table
