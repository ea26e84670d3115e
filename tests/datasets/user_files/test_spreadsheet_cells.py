"""Cells that a spreadsheet would run as a formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnar.datasets.user_files.spreadsheet_cells import plain_cell, safe_cell


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "=cmd|' /C calc'!A0"]
)
def test_a_formula_gets_a_quote(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "cat", "-5", "+3.2e5", "-inf", "a=b", "it's", "'quoted'", "5-3"])
def test_numbers_and_other_texts_stay_as_they_are(text: str) -> None:
    assert safe_cell(text) == text


@given(st.text(alphabet="'=+-@\t\ra1.", max_size=6))
def test_plain_cell_gives_back_what_safe_cell_was_given(text: str) -> None:
    assert plain_cell(safe_cell(text)) == text
    assert not safe_cell(text).startswith(("=", "@", "\t", "\r"))
