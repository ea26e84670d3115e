from __future__ import annotations

import math

import pytest

from mnar.learners.checks import check_positive, check_shares, check_weights


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_shares, (0, 0.5, 1), (-0.01, 1.01, math.nan, math.inf)),
        (check_weights, (0, 1, 150), (-1, math.nan, math.inf)),
        (check_positive, (0.001, 1, 150), (0, -1, math.nan, math.inf)),
    ],
)
def test_what_is_out_of_range_is_refused_by_name_and_value(check, good, bad) -> None:  # type: ignore[no-untyped-def]
    for value in good:
        check(one=value, other=value)
    for value in bad:
        with pytest.raises(ValueError, match=rf"other is {value}; "):
            check(one=good[1], other=value)
