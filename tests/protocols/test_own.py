import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from mnar.protocols import own


@st.composite
def possible_requests(draw: st.DrawFn) -> tuple[int, int, int]:
    k = draw(st.integers(2, 120))
    n1 = draw(st.integers(1, 300))
    return k, draw(st.integers(n1 + k - 1, n1 * k)), n1


@settings(deadline=None)
@given(possible_requests())
def test_exact_rounding_meets_the_total_with_n1_first_and_never_rises(request_: tuple[int, int, int]) -> None:
    k, num_labels, n1 = request_
    labeled = own(k, num_labels, n1, rounding="exact").labeled
    assert sum(labeled) == num_labels
    assert labeled[0] == n1
    assert labeled[-1] >= 1
    assert list(labeled) == sorted(labeled, reverse=True)


@settings(deadline=None)
@given(possible_requests())
def test_official_rounding_meets_the_total_with_n1_first_or_refuses(request_: tuple[int, int, int]) -> None:
    k, num_labels, n1 = request_
    try:
        labeled = own(k, num_labels, n1).labeled
    except ValueError:
        reject()
    assert sum(labeled) == num_labels
    assert labeled[0] == n1
    assert min(labeled) >= 1


@pytest.mark.parametrize(("num_labels", "n1"), [(40, 10), (40, 20), (90, 40), (130, 60), (250, 100), (250, 200)])
def test_official_gamma_is_that_of_a_search_one_by_one(num_labels: int, n1: int) -> None:
    gammas = np.arange(1, 100_000)[:, None]
    profiles = np.maximum(1, np.floor(n1 * gammas ** (-np.arange(10) / 10) + 1e-9))
    totals = profiles.sum(axis=1)
    below = np.argmax(totals <= num_labels) if (totals <= num_labels).any() else len(totals) - 1
    nearest = min((below - 1, below), key=lambda row: abs(totals[row] - num_labels))
    moved = own(10, num_labels, n1).labeled - profiles[nearest]
    assert np.abs(moved).sum() == abs(totals[nearest] - num_labels)
    assert moved[[0, 8, 9]].tolist() == [0, 0, 0]


def test_official_search_limit_gives_the_published_profile_for_250_labels_and_n1_200() -> None:
    assert own(10, 250, 200).labeled == (200, 42, 1, 1, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("k", "num_labels", "n1"),
    [(10, 100, 40), (100, 400, 40), (100, 1000, 40), (100, 1000, 80), (100, 2500, 200)],
)
def test_official_total_is_met_for_the_other_published_columns(k: int, num_labels: int, n1: int) -> None:
    assert sum(own(k, num_labels, n1).labeled) == num_labels


@pytest.mark.parametrize("rounding", ["official", "exact"])
def test_n1_times_classes_is_balanced(rounding: str) -> None:
    assert own(10, 40, 4, rounding=rounding).labeled == (4,) * 10


def test_a_total_out_of_reach_of_the_published_rounding_names_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"gives 62 labels where num_labels is 65 .*use rounding='exact'"):
        own(10, 65, 8)


def test_unlabelled_part_is_all_that_is_left_without_gamma_u() -> None:
    assert own(10, 40, 10).unlabeled is None


def test_m1_is_the_last_class_of_the_inverse_order() -> None:
    assert own(3, 9, 4, gamma_u=4, m1=100, rounding="exact").unlabeled == (25, 50, 100)


@pytest.mark.parametrize(
    ("k", "num_labels", "n1", "message"),
    [
        (10, 9, 1, "num_labels is 9 for 10 classes; .*10 labels or more"),
        (10, 40, 41, "num_labels is 40, .*n1=41.* hold 50 to 410"),
        (10, 40, 32, "num_labels is 40, .*n1=32.* hold 41 to 320"),
        (10, 40, 3, "num_labels is 40, .*n1=3.* hold 12 to 30"),
        (10, 40, 0, "n1 is 0; expected a whole number from 1 to"),
        (1, 40, 40, "num_classes is 1"),
    ],
)
@pytest.mark.parametrize("rounding", ["official", "exact"])
def test_impossible_requests_name_value_and_remedy(
    k: int, num_labels: int, n1: int, message: str, rounding: str
) -> None:
    with pytest.raises(ValueError, match=message):
        own(k, num_labels, n1, rounding=rounding)


def test_gamma_u_and_m1_are_checked() -> None:
    with pytest.raises(ValueError, match="gamma_u is 0"):
        own(10, 40, 10, gamma_u=0)
    with pytest.raises(ValueError, match="m1 is 0"):
        own(10, 40, 10, gamma_u=2, m1=0)


def test_unknown_rounding_lists_the_choices() -> None:
    with pytest.raises(ValueError, match=r"rounding is 'ceil'; choose from \['official', 'exact'\]"):
        own(10, 40, 10, rounding="ceil")
