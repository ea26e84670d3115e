"""Checks of the options of the portfolio, and of the entries of portfolio.yaml, which a user may have edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mnar.option_values import shown
from mnar.own_data.portfolio import OBJECTIVES

MOST_MINUTES, MOST_STEPS = 10**6, 10**12  # larger numbers are slips of the keyboard
Check = tuple[str, Callable[[Any], bool]]  # what the value must be, in words, and whether it is that


def check_portfolio_options(objective: object, minutes: float | None, iterations: int | None) -> None:
    """Refuse an objective that does not exist, and limits that are not positive."""
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {shown(objective)}; choose from {list(OBJECTIVES)}")
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise ValueError(
            f"minutes is {shown(minutes)}; the time must be positive and at most {MOST_MINUTES:,} minutes. Choose e.g. "
            "5"
        )
    if iterations is not None and not 1 <= iterations <= MOST_STEPS:
        raise ValueError(
            f"iterations is {shown(iterations)}; it must be at least 1 and at most {MOST_STEPS:,}. Choose e.g. 500"
        )


def check_stored_options(stored: Any) -> None:
    """Raise a ValueError that names the first entry that is unknown or has a wrong type."""
    _check_entries("", stored, OPTIONS)
    _check_entries("reading.", stored.get("reading", {}), READING)


def _check_entries(prefix: str, entries: Any, checks: Mapping[str, Check]) -> None:
    if not isinstance(entries, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'its content'} is {entries!r}, not options with their values")
    for name, value in entries.items():
        if name not in checks:
            raise ValueError(f"{prefix}{name} is unknown; the options are {', '.join(checks)}")
        wanted, is_right = checks[name]
        if not is_right(value):
            raise ValueError(f"{prefix}{name} is {value!r}, not {wanted}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any, kind: type = int) -> bool:
    return isinstance(value, int | kind) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


TEXT: Check = ("a text", _is_text)
TEXT_OR_NULL: Check = ("a text or null", lambda value: value is None or _is_text(value))
TEXTS: Check = ("a list of texts", _is_texts)
NUMBER_OR_NULL: Check = ("a whole number or null", lambda value: value is None or _is_number(value))
OPTIONS: dict[str, Check] = {  # of `PortfolioConfig`
    "source": TEXT,
    "reading": ("options with their values", lambda value: isinstance(value, dict)),
    "member": TEXT_OR_NULL,
    "fast": ("true or false", lambda value: isinstance(value, bool)),
    "objective": TEXT,
    "minutes": ("a number or null", lambda value: value is None or _is_number(value, float)),
    "iterations": NUMBER_OR_NULL,
    "seed": ("a whole number", _is_number),
    "fingerprint": TEXT_OR_NULL,
}
READING: dict[str, Check] = {  # of `read_data`
    "label": TEXT_OR_NULL,
    "ignore": TEXTS,
    "unlabeled": TEXTS,
    "size": NUMBER_OR_NULL,
    "features": TEXT_OR_NULL,
    "id": TEXT_OR_NULL,
}
