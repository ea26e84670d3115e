import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnar.protocols import as_labeled, split

LABELED, UNLABELED, LEFT_OUT = 0, -1, -2


def test_found_asks_for_no_counts() -> None:
    assert as_labeled(3) is None  # type: ignore[func-returns-value]


@given(
    st.lists(st.integers(LEFT_OUT, 4), min_size=2, max_size=40).filter(lambda y: max(y) >= LABELED and UNLABELED in y),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_labelled_are_those_with_a_label_and_what_is_left_out_is_in_neither_part_whatever_the_seed(
    targets: list[int], include_labeled: bool, seed: int
) -> None:
    with_label = [row for row, target in enumerate(targets) if target >= 0]
    without = [row for row, target in enumerate(targets) if target == UNLABELED]
    for given_as in (np.array(targets), torch.tensor(targets)):
        rows = split(given_as, as_labeled(5), seed=seed, include_labeled=include_labeled)  # type: ignore[func-returns-value]
        assert rows.labeled_index.dtype == rows.unlabeled_index.dtype == np.int64
        assert rows.labeled_index.tolist() == with_label
        assert rows.unlabeled_index.tolist() == (sorted(with_label + without) if include_labeled else without)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([UNLABELED, LEFT_OUT, UNLABELED], "no sample has a label; give some of each class"),
    ],
)
def test_nothing_labelled_is_refused_with_the_remedy(targets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(targets, None, seed=0)
