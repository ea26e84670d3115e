"""Changes of zip archives, which .npz files and checkpoints are: the archive stays valid, and its content does not."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zipfile
from collections.abc import Sequence

from tests.fuzz.mutations import mutated

LOCAL_HEADER, CENTRAL_HEADER = b"PK\x03\x04", b"PK\x01\x02"
TOKENS = (LOCAL_HEADER, CENTRAL_HEADER, b"PK\x05\x06", b"PK\x06\x06", b"PK\x07\x08", b".npy", b"\x93NUMPY")


def mutated_archive(content: bytes, rng: random.Random, tokens: Sequence[bytes] = ()) -> bytes:
    """Return the archive after a change of its bytes, of its members or of the fields in its headers."""
    return rng.choice((_changed_bytes, _changed_member, _changed_member, _changed_members, _changed_field))(
        content, rng, (*tokens, *TOKENS)
    )


def _changed_bytes(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    return mutated(content, rng, tokens)


def _changed_member(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    """The content of one member changes, with a right checksum."""
    members = _members(content)
    place = rng.randrange(len(members))
    members[place] = (members[place][0], mutated(members[place][1], rng, tokens))
    return _archive(members, rng)


def _changed_members(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    """Members are missing, twice in the archive, exchanged or renamed."""
    members = _members(content)
    place, other = rng.randrange(len(members)), rng.randrange(len(members))
    name, data = members[place]
    change = rng.choice(["drop", "copy", "exchange", "rename"])
    if change == "drop":
        del members[place]
    elif change == "copy":
        members.insert(other, (name, mutated(data, rng, tokens)))
    elif change == "exchange":
        members[place], members[other] = (name, members[other][1]), (members[other][0], data)
    else:
        members[place] = (mutated(name.encode(), rng).decode(errors="replace").replace("\0", "") or "x", data)
    return _archive(members, rng)


def _changed_field(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    """A field of the headers of a member changes: version, flags (1: encrypted), compression, checksum or sizes."""
    changed = bytearray(content)
    # by header: the offsets and letters (of the module struct) of the same five fields
    fields = {LOCAL_HEADER: ((4, "H"), (6, "H"), (8, "H"), (14, "I"), (18, "I"), (22, "I"))}
    fields[CENTRAL_HEADER] = ((6, "H"), (8, "H"), (10, "H"), (16, "I"), (20, "I"), (24, "I"))
    field = rng.randrange(6)
    value = rng.choice([0, 1, 8, 9, 12, 14, 20, 32, 45, 63, 99, 2**11, 2**16 - 1, 2**31, 2**32 - 1])
    for header in fields if rng.random() < 0.7 else [rng.choice(list(fields))]:
        offset, letter = fields[header][field]
        if (start := content.find(header)) >= 0:
            limit = 2 ** (16 if letter == "H" else 32) - 1
            struct.pack_into("<" + letter, changed, start + offset, min(value, limit))
    return bytes(changed)


def _members(content: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def _archive(members: Sequence[tuple[str, bytes]], rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    compression = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()
