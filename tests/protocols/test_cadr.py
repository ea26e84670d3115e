import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnar.protocols import cadr

num_classes = st.integers(2, 200)


@settings(deadline=None)
@given(num_classes, st.integers(1, 500))
def test_whole_gamma_gives_gamma_to_one_in_falling_order(k: int, gamma: int) -> None:
    labeled, unlabeled = cadr(k, gamma)
    assert labeled[0] == gamma
    assert labeled[-1] == 1
    assert list(labeled) == sorted(labeled, reverse=True)
    assert unlabeled is None


@settings(deadline=None)
@given(num_classes, st.floats(1, 500))
def test_floor_and_ceil_enclose_the_formula(k: int, gamma: float) -> None:
    lower, upper = cadr(k, gamma, rounding="floor").labeled, cadr(k, gamma).labeled
    for c in range(k):
        size = gamma ** (1 - c / (k - 1))
        assert lower[c] <= size + 1e-6
        assert size - 1e-6 <= upper[c]
        assert upper[c] - lower[c] <= 1
        assert lower[c] >= 1


def test_exact_powers_are_not_rounded_past_themselves() -> None:
    powers_of_two = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
    assert cadr(11, 1024).labeled == powers_of_two
    assert cadr(11, 1024, rounding="floor").labeled == powers_of_two
    assert cadr(4, 1000).labeled == (1000, 100, 10, 1)


def test_floor_makes_72_labels_of_gamma_20_to_64() -> None:
    assert sum(cadr(10, 20).labeled) == 72
    assert sum(cadr(10, 20, rounding="floor").labeled) == 64


@pytest.mark.parametrize("gamma", [0, -3, 0.5, math.nan, math.inf])
def test_gamma_below_one_is_refused_by_value(gamma: float) -> None:
    with pytest.raises(ValueError, match=rf"gamma is {gamma}; expected a number from 1 to"):
        cadr(10, gamma)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_classes is 1; .* 2 classes"):
        cadr(1, 20)


def test_unknown_rounding_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"rounding is 'round'; choose from \['ceil', 'floor'\]"):
        cadr(10, 20, rounding="round")  # type: ignore[arg-type]
