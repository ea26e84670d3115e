"""Files that claim more than they have, and damaged files: each works or ends in one line with a remedy, at once."""

from __future__ import annotations

import io
import random
import re
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mnar.datasets import npz_file
from mnar.datasets.npz_file import MOST_EXPANSION, SMALL_ARRAYS, read_npy, read_npz

X, Y = np.arange(40, dtype=np.float32).reshape(10, 4), np.arange(10)
DIRECTORY_ENTRY = b"PK\x01\x02"  # the beginning of a member's entry in the directory of an archive
NUM_MUTATIONS = 150  # per kind of file
REMEDY = "; write (the file again|it) with numpy.savez?$"


def npy(array: npt.NDArray[Any]) -> bytes:
    """Return the bytes of an .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def claiming(shape: tuple[int, ...], descr: str = "<f4", fortran_order: bool = False) -> bytes:
    """Return an .npy file of 40 numbers whose header claims something else."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": fortran_order, "shape": shape})
    return stream.getvalue() + X.tobytes()


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def refusal(path: Path, read: Callable[[Path], object] = read_npz) -> str:
    with pytest.raises(ValueError, match=REMEDY) as refused:
        read(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_every_plain_type_and_order_come_back_as_they_were(tmp_path: Path, save: Any) -> None:
    arrays = {
        "x": np.asfortranarray(X),
        "y": np.array(["cat", "dog"]),
        "none": np.zeros((0, 4), np.uint8),
        "one": np.array(3.5),
        "big_endian": Y.astype(">i8"),
        "bytes": np.array([b"a", b"bc"]),
        "booleans": np.array([True, False]),
    }
    save(tmp_path / "own.npz", **arrays)
    found = read_npz(tmp_path / "own.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (claiming((10**12, 4)), "needs 16,000,000,000,"),
        (claiming((2**40, 2**40)), "needs 4,835,"),
        (claiming((-10, 4)), "not that of an array"),
        (claiming((10**9, 0)), "not that of an array"),
        (claiming((10, 3)), "but there are 288"),
        (claiming((10**12,), "<U0"), "not plain numbers"),
        (claiming((40,), "|O"), "not plain numbers"),
        (claiming((20,), "[('a', '<f4'), ('b', '<f4')]"), ""),
        (claiming((10, 4), "<q9"), ""),
        (npy(X)[:-1], "but there are 287"),
        (npy(X)[:20], ""),
        (npy(np.array([{}], dtype=object)), "not plain numbers"),
        (b"\x93NUMPY\x09\x00" + npy(X)[8:], "version"),
        (b"plain text", ""),
        (b"", ""),
    ],
)
def test_a_claim_that_the_bytes_do_not_bear_out_is_refused_before_memory_is_allocated(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "own.npy").write_bytes(content)
    path = archive(tmp_path / "own.npz", {"x.npy": content, "y.npy": npy(Y)})
    tracemalloc.start()
    assert said in refusal(path)
    assert "x.npy" in refusal(path)
    assert said in refusal(tmp_path / "own.npy", read_npy)
    assert said in refusal(tmp_path / "own.npy", lambda path: read_npy(path, mapped=False))
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_fortran_order_in_a_header_is_read_as_numpy_reads_it(tmp_path: Path) -> None:
    path = archive(tmp_path / "own.npz", {"x.npy": claiming((10, 4), fortran_order=True)})
    assert np.array_equal(read_npz(path)["x"], X.reshape(4, 10).T)


def test_a_small_file_that_would_fill_the_memory_is_refused_with_the_limit(tmp_path: Path) -> None:
    zeros = np.zeros(SMALL_ARRAYS // 8 + 1)
    np.savez_compressed(tmp_path / "bomb.npz", x=zeros)
    assert "its arrays have 256 MiB, but a compressed file of this size may hold at most 256 MiB" in refusal(
        tmp_path / "bomb.npz"
    )


def test_a_file_may_expand_as_far_as_stated_and_without_compression_as_far_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz_file, "SMALL_ARRAYS", 0)
    array = np.zeros(10**5)
    np.savez_compressed(tmp_path / "compressed.npz", x=array)
    assert array.nbytes > MOST_EXPANSION * (tmp_path / "compressed.npz").stat().st_size
    refusal(tmp_path / "compressed.npz")
    np.savez(tmp_path / "plain.npz", x=array)
    assert len(read_npz(tmp_path / "plain.npz")["x"]) == 10**5


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (8, 1, "encrypted"),
        (8, 0x20, "compressed in another way"),
        (10, 12, "compressed in another way"),  # bzip2
        (10, 93, "compressed in another way"),  # Zstandard, which Python 3.11 cannot read
        (6, 255, ""),  # needs a later version of the format
    ],
)
def test_a_feature_of_archives_that_numpy_does_not_write_is_refused_by_name(
    tmp_path: Path, offset: int, value: int, said: str
) -> None:
    path = archive(tmp_path / "own.npz", {"x.npy": npy(X)})
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, content.index(DIRECTORY_ENTRY) + offset, value)
    path.write_bytes(content)
    assert said in refusal(path)


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as file:
        file.writestr("x.npy", npy(X))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("x.npy", npy(Y))
    assert "the same name" in refusal(tmp_path / "own.npz")


@pytest.mark.parametrize("number", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_text_with_a_number_that_is_no_character_is_refused(tmp_path: Path, number: int, order: str) -> None:
    names = np.array([97, 0x10FFFF, 98, number], f"{order}u4").view(f"{order}U2")
    path = archive(tmp_path / "own.npz", {"names.npy": npy(names)})
    assert "names.npy: a text contains a number that is no character" in refusal(path)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "own.npz", {"x.npy": npy(X), "y.npy": npy(X)})
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.rindex(DIRECTORY_ENTRY) + 42, 0)  # the place of the second member
    path.write_bytes(content)
    assert "overlap" in refusal(path)


@pytest.mark.parametrize("kind", ["npz", "compressed npz", "npy"])
def test_a_mutated_file_works_or_ends_in_one_line_with_a_remedy(tmp_path: Path, kind: str) -> None:
    draw = random.Random(7)
    path = tmp_path / f"own.{kind.split()[-1]}"
    if kind == "npy":
        path.write_bytes(npy(X))
    else:
        (np.savez_compressed if "compressed" in kind else np.savez)(path, x=X, y=Y, classes=np.array(["a", "b"]))
    original, refusals, began = path.read_bytes(), list[str](), time.perf_counter()
    for _ in range(NUM_MUTATIONS):
        path.write_bytes(mutated(original, draw))
        try:
            read_npy(path) if kind == "npy" else read_npz(path)
        except ValueError as error:
            refusals.append(str(error))
    assert len(refusals) > NUM_MUTATIONS / 10
    assert all(re.search(REMEDY, refusal) for refusal in refusals)
    assert not any("\n" in refusal for refusal in refusals)
    assert time.perf_counter() - began < 10


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Change a few bytes, cut a part, or repeat a part."""
    changed = bytearray(content)
    first, last = sorted(draw.randrange(len(changed)) for _ in range(2))
    kind = draw.randrange(4)
    if kind == 0:
        del changed[first:last]
    elif kind == 1:
        changed[first:first] = changed[first:last]
    else:
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
    return bytes(changed)
