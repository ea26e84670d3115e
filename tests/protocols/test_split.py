from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnar.protocols import cadr, own, split
from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split
from mnar.types import Counts
from tests.datasets.test_cifar_n import write_cifar10n

TARGETS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))


@st.composite
def targets_and_counts(draw: st.DrawFn) -> tuple[np.ndarray, Counts]:
    held = draw(st.lists(st.integers(1, 30), min_size=2, max_size=8))
    labeled = tuple(draw(st.integers(0, size)) for size in held)
    asked = st.tuples(*(st.integers(0, 40) for _ in held))
    targets = np.repeat(np.arange(len(held)), held)
    order = draw(st.permutations(range(len(targets))))
    return targets[order], Counts(labeled, draw(st.none() | asked))


@settings(deadline=None)
@given(targets_and_counts(), st.integers(0, 2**32))
def test_rows_are_sorted_unique_and_as_many_as_asked_or_left(case: tuple[np.ndarray, Counts], seed: int) -> None:
    targets, counts = case
    num_classes = len(counts.labeled)
    labeled_index, unlabeled_index = split(targets, counts, seed=seed, include_labeled=False)
    for index in (labeled_index, unlabeled_index):
        assert index.dtype == np.int64
        assert (np.diff(index) > 0).all()
    assert np.intersect1d(labeled_index, unlabeled_index).size == 0
    left = np.bincount(targets, minlength=num_classes) - counts.labeled
    drawn = left if counts.unlabeled is None else np.minimum(left, counts.unlabeled)
    assert np.bincount(targets[labeled_index], minlength=num_classes).tolist() == list(counts.labeled)
    assert np.bincount(targets[unlabeled_index], minlength=num_classes).tolist() == drawn.tolist()

    both = split(targets, counts, seed=seed)
    assert both.labeled_index.tolist() == labeled_index.tolist()
    assert both.unlabeled_index.tolist() == np.union1d(labeled_index, unlabeled_index).tolist()


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    counts = own(10, 40, 10, gamma_u=5, m1=50)
    first, again, other = (split(TARGETS, counts, seed=seed) for seed in (1, 1, 2))
    assert first.labeled_index.tolist() == again.labeled_index.tolist()
    assert first.unlabeled_index.tolist() == again.unlabeled_index.tolist()
    assert first.labeled_index.tolist() != other.labeled_index.tolist()
    assert first.unlabeled_index.tolist() != other.unlabeled_index.tolist()


def test_the_labelled_draw_does_not_depend_on_the_unlabelled_options() -> None:
    whole, part = own(10, 40, 10), own(10, 40, 10, gamma_u=5, m1=50)
    draws = [
        split(TARGETS, counts, seed=3, include_labeled=include).labeled_index.tolist()
        for counts in (whole, part)
        for include in (True, False)
    ]
    assert draws == [draws[0]] * 4


def test_every_sample_of_a_class_is_drawn_equally_often() -> None:
    targets = np.repeat([0, 1], 5)
    draws = [split(targets, Counts((2, 1)), seed=seed).labeled_index for seed in range(2000)]
    often = np.bincount(np.concatenate(draws), minlength=10) / 2000
    assert np.abs(often - np.repeat([2 / 5, 1 / 5], 5)).max() < 0.05  # 4.5 standard deviations


def test_a_tensor_gives_the_split_of_the_array() -> None:
    counts = cadr(10, 20)
    from_array, from_tensor = (split(t, counts, seed=1) for t in (TARGETS, torch.from_numpy(TARGETS)))
    assert from_array.labeled_index.tolist() == from_tensor.labeled_index.tolist()


@pytest.mark.parametrize(
    ("targets", "counts", "message"),
    [
        ([0, 0, 1], Counts((1, 2)), "class 1 was asked for 2 labelled samples and holds 1"),
        ([0, 0, 1], Counts((1, 1, 1)), "class 2 was asked for 1 labelled samples and holds 0"),
        ([0, 0, 1], Counts((-1, 1)), "class 0 was asked for -1 "),
        ([0, 1, 2], Counts((1, 1)), r"targets\[2\] is 2; .*0 to 1"),
        ([0, 1, 1], Counts((1, 1), (1,)), "2 labelled and 1 unlabelled classes"),
        ([0, -1, 1], Counts((1, 1)), "some samples have no label already, .*; choose --protocol as_labeled"),
        ([0, -2, 1], Counts((1, 1)), r"targets\[1\] is -2"),
        ([0.0, 1.0, np.nan], Counts((1, 1)), r"targets\[2\] is nan"),
        ([0.0, 0.5, 1.0], Counts((1, 1)), r"targets\[1\] is 0.5"),
        (["cat", "dog"], Counts((1, 1)), "targets has type <U3"),
        ([[0, 1]], Counts((1, 1)), r"shape \(1, 2\)"),
    ],
)
def test_bad_input_names_value_and_remedy(targets: list[object], counts: Counts, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(targets, counts, seed=0)


def test_people_s_labels_that_are_missing_already_cannot_be_drawn_and_the_remedy_is_named(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    config = configure(dataset="cifar10n_agreement", data=str(tmp_path), protocol="cadr", settings=["protocol.gamma=2"])
    with pytest.raises(ValueError, match=r"some samples have no label already.*choose --protocol as_labeled"):
        make_split(config, load_data(config))
