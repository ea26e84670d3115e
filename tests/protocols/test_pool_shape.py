import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnar.config import options_of
from mnar.protocols import pool_shape, split
from mnar.protocols.pool_shape import SHAPES
from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split
from mnar.types import Counts, ExactCounts

SKEWED = [shape for shape in SHAPES if shape != "uniform"]
CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)

# Counts of the published settings of CIFAR-10, N1 = 500 and M1 = 4000, by imbalance. They were computed outside this
# package with the formula and the class orders of SimPro's released code, which cuts off the decimals.
LABELED = {
    150: (500, 286, 164, 94, 53, 30, 17, 10, 5, 3),
    100: (500, 299, 179, 107, 64, 38, 23, 13, 8, 5),
}
UNLABELED = {
    150: {
        "consistent": (4000, 2292, 1313, 752, 431, 247, 141, 81, 46, 26),
        "uniform": (4000,) * 10,
        "reversed": (26, 46, 81, 141, 247, 431, 752, 1313, 2292, 4000),
        "middle": (46, 141, 431, 1313, 4000, 2292, 752, 247, 81, 26),
        "head_tail": (2292, 752, 247, 81, 26, 46, 141, 431, 1313, 4000),
    },
    100: {
        "consistent": (4000, 2397, 1437, 861, 516, 309, 185, 111, 66, 40),
        "uniform": (4000,) * 10,
        "reversed": (40, 66, 111, 185, 309, 516, 861, 1437, 2397, 4000),
        "middle": (66, 185, 516, 1437, 4000, 2397, 861, 309, 111, 40),
        "head_tail": (2397, 861, 309, 111, 40, 66, 185, 516, 1437, 4000),
    },
}

num_classes = st.integers(2, 200)
gammas = st.floats(1, 500)
sizes = st.integers(1, 6000)


@pytest.mark.parametrize("gamma", [150, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_counts_for_cifar10_equal_those_of_the_released_formula(shape: str, gamma: int) -> None:
    assert pool_shape(10, shape, gamma) == (LABELED[gamma], UNLABELED[gamma][shape])


@pytest.mark.parametrize(
    ("shape", "unlabeled"),
    [
        ("consistent", (81, 27, 9, 3, 1)),
        ("uniform", (81, 81, 81, 81, 81)),
        ("reversed", (1, 3, 9, 27, 81)),
        ("middle", (1, 9, 81, 27, 3)),
        ("head_tail", (27, 3, 1, 9, 81)),
    ],
)
def test_an_odd_number_of_classes_and_exact_powers_give_the_counts_by_hand(
    shape: str, unlabeled: tuple[int, ...]
) -> None:
    gamma_u = None if shape == "uniform" else 81
    assert pool_shape(5, shape, 16, gamma_u, n1=16, m1=81) == ((16, 8, 4, 2, 1), unlabeled)


@settings(deadline=None)
@given(num_classes, gammas, gammas, sizes, sizes)
def test_labels_and_consistent_pool_fall_and_are_the_formula_rounded_down(
    k: int, gamma_l: float, gamma_u: float, n1: int, m1: int
) -> None:
    counts = pool_shape(k, "consistent", gamma_l, gamma_u, n1=n1, m1=m1)
    for drawn, largest, gamma in ((counts.labeled, n1, gamma_l), (counts.unlabeled, m1, gamma_u)):
        assert drawn is not None
        assert list(drawn) == sorted(drawn, reverse=True)
        assert (len(drawn), drawn[0]) == (k, largest)
        for c, count in enumerate(drawn):
            size = largest * gamma ** (-c / (k - 1))
            assert max(1, math.floor(size - 1e-6)) <= count <= max(1, size + 1e-6)


@settings(deadline=None)
@given(num_classes, gammas, gammas, sizes, sizes)
def test_every_skewed_shape_orders_the_same_counts_and_leaves_the_labels_alone(
    k: int, gamma_l: float, gamma_u: float, n1: int, m1: int
) -> None:
    of = {shape: pool_shape(k, shape, gamma_l, gamma_u, n1=n1, m1=m1) for shape in SKEWED}
    pools = {shape: counts.unlabeled or () for shape, counts in of.items()}
    assert len({counts.labeled for counts in of.values()}) == 1
    assert len({tuple(sorted(pool)) for pool in pools.values()}) == 1
    assert pools["reversed"] == pools["consistent"][::-1]

    # "middle" rises to its peak and falls again, and its two sides hold neighbouring ranks.
    middle, peak = list(pools["middle"]), (k - 1) // 2
    assert middle[peak] == m1
    assert middle[: peak + 1] == sorted(middle[: peak + 1])
    assert middle[peak:] == sorted(middle[peak:], reverse=True)
    # "head_tail" has the same two sides in exchanged places: it falls to a valley and rises to the last class.
    assert list(pools["head_tail"]) == middle[peak + 1 :] + middle[: peak + 1]


@settings(deadline=None)
@given(num_classes, gammas, sizes, st.sampled_from([None, 1, 1.0]))
def test_a_uniform_pool_has_m1_in_every_class(k: int, gamma_l: float, m1: int, gamma_u: float | None) -> None:
    assert pool_shape(k, "uniform", gamma_l, gamma_u, m1=m1).unlabeled == (m1,) * k


@pytest.mark.parametrize("shape", SKEWED)
def test_without_gamma_u_the_pool_has_the_imbalance_of_the_labels(shape: str) -> None:
    assert pool_shape(10, shape, 30) == pool_shape(10, shape, 30, 30)
    assert pool_shape(10, shape, 30) != pool_shape(10, shape, 30, 31)


def test_no_class_is_empty_where_the_imbalance_exceeds_the_largest_class() -> None:
    assert pool_shape(3, "reversed", 100, n1=20, m1=50) == ((20, 2, 1), (1, 5, 50))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("targets", "dataset"), [(CIFAR10, "cifar10"), (CIFAR100, "cifar100")])
def test_the_classes_of_cifar_hold_all_that_the_recipes_ask_for(shape: str, targets: np.ndarray, dataset: str) -> None:
    config = configure(recipe=f"shapes/{dataset}-{shape.replace('_', '-')}/fixmatch")
    counts = pool_shape(targets.max() + 1, **config.protocol.options)
    assert config.split == {"include_labeled": False}
    labeled_index, unlabeled_index = split(targets, counts, seed=1, **config.split)
    assert tuple(np.bincount(targets[labeled_index])) == counts.labeled
    assert tuple(np.bincount(targets[unlabeled_index])) == counts.unlabeled


def test_sizes_of_cifar100_and_digits_fit_the_data_set_and_given_sizes_win() -> None:
    def options(dataset: str, *more: str) -> list[object]:
        config = configure(dataset=dataset, protocol="pool_shape", settings=["protocol.shape=middle", *more])
        return [config.protocol.options[name] for name in ("gamma_l", "gamma_u", "n1", "m1")]

    assert options("cifar10") == [100, None, 500, 4000]
    assert options("cifar100") == [10, None, 50, 400]
    assert options("digits") == [20, None, 20, 100]
    assert options("digits", "protocol.gamma_u=5", "protocol.m1=60") == [20, 5, 20, 60]
    assert list(options_of("protocol", pool_shape)) == ["shape", "gamma_l", "gamma_u", "n1", "m1"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [0, -3, 0.5, math.nan, math.inf])
def test_gamma_below_one_is_refused_by_name_and_value(shape: str, gamma: float) -> None:
    with pytest.raises(ValueError, match=rf"gamma_l is {gamma}; expected a number from 1 to"):
        pool_shape(10, shape, gamma)
    with pytest.raises(ValueError, match=rf"gamma_u is {gamma}; expected a number from 1 to"):
        pool_shape(10, shape, 100, gamma)


@pytest.mark.parametrize(
    ("k", "shape", "options", "message"),
    [
        (10, "head-tail", {}, r"shape is 'head-tail'; choose from \['consistent', .*'head_tail'\]"),
        (10, "uniform", {"gamma_u": 50}, "gamma_u is 50, but a uniform pool has gamma_u = 1; leave gamma_u out"),
        (10, "middle", {"n1": 0}, "n1 is 0; expected a whole number from 1 to"),
        (10, "middle", {"m1": -1}, "m1 is -1; expected a whole number from 1 to"),
        (1, "middle", {}, "num_classes is 1; .* 2 classes"),
    ],
)
def test_impossible_requests_name_value_and_remedy(k: int, shape: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool_shape(k, shape, **options)  # type: ignore[arg-type]


def test_a_class_that_cannot_fill_the_pool_is_refused_where_other_protocols_take_what_is_left() -> None:
    targets = np.repeat([0, 1, 2], [30, 12, 9])
    exact = pool_shape(3, "uniform", 4, n1=8, m1=9)  # labels 8, 4, 2: of the classes remain 22, 8 and 7
    with pytest.raises(ValueError, match=r"class 2 was asked for 9 .* but 7 remain: .* 9 samples, of which 2 are") as e:
        split(targets, exact, seed=1)
    assert "--set protocol.m1" in str(e.value)
    rows = split(targets, Counts(*exact), seed=1, include_labeled=False).unlabeled_index
    assert np.bincount(targets[rows]).tolist() == [9, 8, 7]
    fits = pool_shape(3, "uniform", 4, n1=8, m1=7)
    assert np.bincount(targets[split(targets, fits, seed=1, include_labeled=False).unlabeled_index]).tolist() == [7] * 3


def test_exact_counts_equal_plain_counts_and_stay_exact_when_one_part_is_replaced() -> None:
    counts = pool_shape(3, "middle", 4, n1=4, m1=4)
    assert counts == Counts(*counts)
    assert isinstance(counts._replace(labeled=(1, 1, 1)), ExactCounts)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        # class 0 of the digits lacks most: 128 images, of which 20 are labelled
        ("protocol.m1=120", "class 0 was asked for 120 .* but 108 remain: .* 128 samples, of which 20 are labelled"),
        ("protocol.gamma_l=0", r"gamma_l \(pool_shape\) is 0; expected a number from 1 to"),
        ("protocol.gamma_u=-5", r"gamma_u \(pool_shape\) is -5; expected"),
    ],
)
def test_a_recipe_with_an_impossible_option_is_refused_before_training(setting: str, message: str) -> None:
    def refused() -> None:
        config = configure(recipe="shapes/digits-uniform/fixmatch", settings=[setting])
        make_split(config, load_data(config))

    with pytest.raises(ValueError, match=message):
        refused()
