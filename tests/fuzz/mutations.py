"""Change a valid file in ways that people, disks and attackers do. Everything is drawn from one generator."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
MOST_CHANGES = 4
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "latin-1", "cp437", "utf-7")
LINE_ENDS = ("\n", "\r\n", "\r", "\n\n", "\n\r", "\v", "\u2028")


def mutated(content: bytes, rng: random.Random, tokens: Sequence[bytes] = ()) -> bytes:
    """Return the content after one to four changes of its bytes; `tokens` mean something in the format of the file."""
    for _ in range(rng.randint(1, MOST_CHANGES)):
        content = rng.choice(CHANGES)(content, rng, tokens)
    return content


def _flip_a_bit(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    if not content:
        return content
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


def _write_bytes(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    new = rng.choice([bytes(rng.randint(1, 8)), b"\xff" * rng.randint(1, 8), rng.randbytes(rng.randint(1, 8))])
    place = rng.randint(0, len(content))
    return content[:place] + new + content[place + len(new) :]


def _write_a_number(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    size, letter = rng.choice([(2, "H"), (4, "I"), (8, "Q")])
    number = rng.choice(NUMBERS) & (2 ** (8 * size) - 1)
    place = rng.randint(0, len(content))
    return content[:place] + struct.pack(rng.choice("<>") + letter, number) + content[place + size :]


def _cut_off(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    return content[: rng.randint(0, len(content))]


def _drop_a_part(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    start, end = _part(content, rng)
    return content[:start] + content[end:]


def _repeat_a_part(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    start, end = _part(content, rng)
    return content[:end] + content[start:end] * rng.choice([1, 1, 2, 50]) + content[end:]


def _copy_a_part_elsewhere(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    start, end = _part(content, rng)
    place = rng.randint(0, len(content))
    return content[:place] + content[start:end] + content[place + end - start :]


def _insert_a_token(content: bytes, rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    place = rng.randint(0, len(content))
    return content[:place] + rng.choice(tokens or [b"\0"]) + content[place:]


CHANGES: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    _flip_a_bit,
    _flip_a_bit,
    _write_bytes,
    _write_a_number,
    _cut_off,
    _drop_a_part,
    _repeat_a_part,
    _copy_a_part_elsewhere,
    _insert_a_token,
)


def _part(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randint(0, len(content))
    return start, min(len(content), start + rng.choice([1, 8, 64, 1024]))


def mutated_text(text: str, rng: random.Random, separators: str, tokens: Sequence[str]) -> bytes:
    """Return a text of lines and cells after changes of cells, lines, line ends and the encoding, and of its bytes."""
    lines = [_cells(line, separators) for line in text.splitlines()]
    for _ in range(rng.randint(1, MOST_CHANGES)):
        rng.choice((_change_a_cell, _change_a_cell, _change_a_column, _change_a_line))(lines, rng, tokens)
    ends = rng.choice(LINE_ENDS) if rng.random() < 0.2 else "\n"
    joined = ends.join("".join(line) for line in lines) + rng.choice([ends, ends, ""])
    encoding = rng.choice(ENCODINGS) if rng.random() < 0.2 else "utf-8"
    content = joined.encode(encoding, errors="replace")
    return (
        mutated(content, rng, [token.encode(errors="replace") for token in tokens]) if rng.random() < 0.3 else content
    )


def _cells(line: str, separators: str) -> list[str]:
    """Split a line into cells and the separators between them."""
    cells = [""]
    for character in line:
        if character in separators:
            cells += [character, ""]
        else:
            cells[-1] += character
    return cells


def _change_a_cell(lines: list[list[str]], rng: random.Random, tokens: Sequence[str]) -> None:
    line = rng.choice(lines)
    place = rng.randrange(len(line))
    line[place] = rng.choice([rng.choice(tokens), line[place] + rng.choice(tokens), "", f'"{line[place]}"'])


def _change_a_column(lines: list[list[str]], rng: random.Random, tokens: Sequence[str]) -> None:
    place, change, token = (
        rng.randrange(max(map(len, lines))),
        rng.choice(["empty", "copy", "fill"]),
        rng.choice(tokens),
    )
    for line in lines[rng.randint(0, 1) :]:
        if place < len(line):
            line[place : place + 1] = {"empty": [""], "copy": [line[place]] * 2, "fill": [token]}[change]


def _change_a_line(lines: list[list[str]], rng: random.Random, tokens: Sequence[str]) -> None:
    place, change = rng.randrange(len(lines)), rng.choice(["drop", "copy", "move", "empty", "only"])
    if change == "copy":
        lines.insert(place, list(lines[place]))
    elif change == "move":
        lines.insert(rng.randrange(len(lines)), lines.pop(place))
    elif change == "empty":
        lines[place] = [""]
    elif len(lines) > 1:
        lines[:] = lines[:place] + lines[place + 1 :] if change == "drop" else [lines[0], lines[place]]
