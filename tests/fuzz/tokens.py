"""Words and values that mean something to a reader, or that programs often stumble over."""

from __future__ import annotations

from typing import Any

BLANKS = ("", " ", "\t", "\n", "\r\n", "\r", "\v", "\0", "\x1a", "\x1b[31m", "\u2028", "\u202e", "\ufeff")
MARKUP = ("[/]", "[red]", "[bold]x[/bold]", ":key:", "%s", "{0}", "=1+1", "\\", "'", '"', '""', "`", "@", "#")
LETTERS = ("é", "ß", "İ", "e\u0301", "९", "½", "٣", "\ufffd")
NUMBERS = (
    *("0", "-1", "1", "2.5", "1,5", "1.5.2", "1e", "--", "007", "0x10", "0o17", "1_000", "nan", "inf", "-inf"),
    *("1e39", "-1e39", "1e400", "1e-400", "true", "None", "NULL", "N/A", "null"),
    *("1.7976931348623157e308", "-9223372036854775809", "99999999999999999999", "9" * 400),
)
CSV_TOKENS = (
    *(*BLANKS, *MARKUP, *LETTERS, *NUMBERS),
    *(",", ";", "|", "ant", "unlabeled", "?", "path", "image", "weight", "../01.png", "/etc", "C:\\x", "."),
    "a" * 140_000,  # longer than Python's csv module accepts
)
JSON_TOKENS = (
    *(*BLANKS, *MARKUP, *NUMBERS),
    *("{", "}", "[", "]", ",", ":", "{}", "[]", '"x"', "\\u0000", "\\ud800", "NaN", "Infinity", "-Infinity"),
    *("9" * 5000, "[" * 3000, '{"a":' * 3000),
)
YAML_TOKENS = (
    *(*BLANKS, *MARKUP, *LETTERS, *NUMBERS),
    *("&a", "*a", "{", "}", "[", "]", "|", ">", "---", "...", "~", "yes", ".inf", "-.inf", ".nan", "1:30:00"),
    *("2001-01-01", "2001-99-99", "name", "none"),
    *("<<: *a", ": ", "- ", "? ", "%YAML 9.9", "[1, 2]", "{a: 1}", "!x y", "!!binary x", "!!set {a}", "!!timestamp x"),
    *("!!float x", "!!int x", "!!null x", "!!python/name:os.system", "!!python/object/apply:os.system [ls]"),
    *("[" * 3000, "{a: " * 1500, "- " * 2000, "a" * 70_000),
)
IMAGE_TOKENS = (
    *b"IHDR IDAT PLTE tRNS iCCP eXIf \xff\xd8 \xff\xe1 \xff\xdb GIF89a BM II*\0 MM\0* RIFF WEBP VP8X".split(b" "),
    *(b"P6 9999 9999 255\n", b"P5 -1 1 255\n"),
)
NPY_TOKENS = (
    *b"'<f8' '|O' '<U9' '|S0' '>i2' '<c16' '<M8[D]' '|V0' () (-1,) (0,) (99999999999,) True 'descr' (( \0".split(b" "),
    *(b"(40, 40, 40)", b"(1000000, 1000000)"),
)
PARQUET_TOKENS = (
    *b"PAR1 PARE kind weight schema list element key_value ARROW:schema pandas parquet-cpp-arrow \xff\xff".split(b" "),
    *(b"\x15\0", b"\x19\x1c", b"\x19\xfc\xff\xff\xff\x0f", b"\x1c" * 200, b"\x19" * 200),  # starts of fields
)
STATE_TOKENS = (b"steps_done", b"config", b"model", b"digest", b"format", b"\x80\x02")
VALUES: tuple[Any, ...] = (  # of options and of entries in a checkpoint
    *(None, True, False, 0, 1, 2, 3, -1, 0.5, -0.5, 1.0, 1e-300, 1e300, 1e39),
    *(float("inf"), float("-inf"), float("nan")),
    *(2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400),
    *("", "\n", "x", "nan", "1e3", "[/]", "../..", "/nonexistent", "é", "meta", "cuda", "cuda:99", "cpu", "auto"),
    *("prg", "a+b"),
    *([], {}, [1], [0], [-1], [2**40], ["a"], [[]], [1, 2, 3], {"a": 1}),
)
LAUGHS = "a0: &a0 [x,x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
