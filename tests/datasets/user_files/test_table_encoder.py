import json
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.table import features_like
from mnar.datasets.user_files.table_encoder import TableEncoder

RNG = np.random.default_rng(0)
N = 200


def table(**changes: object) -> Table:
    numeric = RNG.normal(5, 3, (N, 2))
    numeric[:20, 1] = np.nan
    codes = np.column_stack([np.arange(N) % 3, np.where(np.arange(N) < 50, -1, 1)])
    codes[-4:, 0] = 3  # a level with four rows is rare
    categories = (("red", "green", "blue", "mauve"), ("never", "yes"))
    return replace(Table(numeric, codes, ("age", "income"), ("colour", "smoker"), categories), **changes)  # type: ignore[arg-type]


OWN = table()
ENCODER = TableEncoder.fit(OWN)


def column(name: str, rows: Table = OWN) -> np.ndarray:
    return ENCODER.transform(rows)[:, ENCODER.feature_names.index(name)]


def test_each_feature_has_only_the_columns_that_it_needs() -> None:
    assert ENCODER.feature_names == (
        *("age", "income", "income (missing)"),
        *("colour = red", "colour = blue", "colour = green", "colour (other)"),
        *("smoker = yes", "smoker (missing)"),
    )
    assert ENCODER.transform(OWN).dtype == np.float32
    assert ENCODER.transform(OWN).shape == (N, 9)


def test_numbers_are_standardised_with_the_moments_of_the_cells_that_are_not_missing() -> None:
    income = OWN.numeric[20:, 1]
    np.testing.assert_allclose(column("income")[20:], (income - income.mean()) / income.std(), rtol=1e-5)
    assert not column("income")[:20].any()
    assert column("income (missing)").tolist() == [1] * 20 + [0] * 180


def test_levels_are_one_hot_and_rare_levels_share_a_column() -> None:
    assert np.array_equal(column("colour = red"), OWN.categorical[:, 0] == 0)
    assert np.array_equal(column("colour (other)"), OWN.categorical[:, 0] == 3)
    assert np.array_equal(column("smoker (missing)"), OWN.categorical[:, 1] == -1)


def test_the_fifty_most_frequent_levels_have_columns_and_the_others_share_one() -> None:
    codes = np.repeat(np.arange(60), np.arange(60) + 10)[:, None]
    names = tuple(f"town {i}" for i in range(60))
    encoder = TableEncoder.fit(Table(np.empty((len(codes), 0)), codes, (), ("town",), (names,)))
    assert encoder.feature_names == (*(f"town = town {i}" for i in range(59, 9, -1)), "town (other)")


def test_small_tables_keep_levels_of_one_row_in_twenty() -> None:
    small = Table(np.empty((20, 0)), np.arange(20)[:, None] % 10, (), ("digit",), (tuple("0123456789"),))
    assert len(TableEncoder.fit(small).feature_names) == 10


def test_new_rows_use_the_old_moments_and_are_clipped_at_ten() -> None:
    rows = table(numeric=np.tile([1e6, -np.inf], (N, 1)))
    assert set(column("age", rows)) == {10}
    assert set(column("income", rows)) == {-10}


def test_new_levels_are_other_or_missing_and_zero_if_fit_saw_none_of_their_kind() -> None:
    rows = table(
        numeric=np.full((N, 2), np.nan),
        categorical=np.tile([0, 0], (N, 1)),
        categories=(("pink",), ("sometimes",)),
    )
    encoded = dict(zip(ENCODER.feature_names, ENCODER.transform(rows)[0], strict=True))
    assert {name for name, value in encoded.items() if value} == {
        "income (missing)",
        "colour (other)",
        "smoker (missing)",
    }


def test_a_column_that_is_all_missing_or_constant_is_zero() -> None:
    rows = table(numeric=np.column_stack([np.full(N, 7.0), np.full(N, np.nan)]))
    assert not TableEncoder.fit(rows).transform(rows)[:, :2].any()


def test_columns_are_found_by_name_and_levels_by_text_in_any_order() -> None:
    recoded = np.array([2, 1, 0, 3, -1])[OWN.categorical[:, 0]]
    shuffled = Table(
        numeric=np.column_stack([OWN.numeric[:, 1], np.zeros(N), OWN.numeric[:, 0]]),
        categorical=np.column_stack([OWN.categorical[:, 1], recoded]),
        numeric_names=("income", "extra", "age"),
        categorical_names=("smoker", "colour"),
        categories=(OWN.categories[1], ("blue", "green", "red", "mauve")),
    )
    assert np.array_equal(ENCODER.transform(shuffled), ENCODER.transform(OWN))
    assert np.array_equal(ENCODER.for_trees(shuffled)[0], ENCODER.for_trees(OWN)[0], equal_nan=True)


def test_a_column_that_is_missing_or_of_another_kind_is_an_error_that_names_it() -> None:
    with pytest.raises(
        ValueError, match=r"no column 'age', which the encoder was fitted with, only .*'years'.*; add it"
    ):
        ENCODER.transform(table(numeric_names=("years", "income")))
    with pytest.raises(ValueError, match="'age' held numbers when the encoder was fitted"):
        ENCODER.transform(table(numeric_names=("colour", "income"), categorical_names=("age", "smoker")))


def test_new_data_read_by_the_schema_can_be_encoded() -> None:
    new = features_like({"smoker": ["yes"], "income": [""], "age": ["3"], "colour": ["mauve"]}, ENCODER.schema)
    encoded = dict(zip(ENCODER.feature_names, ENCODER.transform(new)[0], strict=True))
    assert encoded.pop("age") == pytest.approx((3 - OWN.numeric[:, 0].mean()) / OWN.numeric[:, 0].std())
    assert {name for name, value in encoded.items() if value} == {"income (missing)", "colour (other)", "smoker = yes"}


def test_json_and_pickle_give_the_same_encoder_back() -> None:
    assert TableEncoder.from_dict(json.loads(json.dumps(ENCODER.to_dict()))) == ENCODER
    assert pickle.loads(pickle.dumps(ENCODER)) == ENCODER
    with pytest.raises(ValueError, match=r"a stored encoder has the entries .*'means'.*this one has"):
        TableEncoder.from_dict({"levels": []})


def test_trees_get_nan_for_missing_cells_and_codes_by_frequency() -> None:
    values, is_categorical = ENCODER.for_trees(OWN)
    assert values.dtype == np.float64
    assert is_categorical.tolist() == [False, False, True, True]
    assert np.array_equal(values[:, :2], OWN.numeric, equal_nan=True)
    assert np.isnan(values[:50, 3]).all()
    assert [ENCODER.levels[0][int(code)] for code in values[:, 2]] == [
        OWN.categories[0][code] for code in OWN.categorical[:, 0]
    ]


def test_gradient_boosting_takes_a_column_of_400_levels_and_new_ones() -> None:
    codes = np.arange(6400)[:, None] % 400
    many = Table(np.empty((6400, 0)), codes, (), ("town",), (tuple(f"{i:03}" for i in range(400)),))
    encoder = TableEncoder.fit(many)
    values, is_categorical = encoder.for_trees(many)
    assert set(values[:, 0]) == set(range(255))
    y = codes[:, 0] < 100
    trees = HistGradientBoostingClassifier(max_iter=20, categorical_features=is_categorical).fit(values, y)
    assert trees.score(values, y) > 0.95
    new = replace(many, categories=(tuple(f"new {i}" for i in range(400)),))
    assert trees.predict(encoder.for_trees(new)[0]).shape == (6400,)


@pytest.mark.parametrize("scale", [1e18, 1e160, 1e300])
def test_huge_numbers_are_standardised_as_small_ones_without_overflow(scale: float) -> None:
    small = np.random.default_rng(0).normal(size=(50, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, encoded = (
            TableEncoder.fit(rows).transform(rows) for rows in map(Table.of_numbers, (small, small * scale))
        )
    np.testing.assert_allclose(encoded, expected, atol=1e-5)


@pytest.mark.parametrize("largest", [1.7e308, np.finfo(np.float64).max])
def test_numbers_at_both_ends_of_float64_are_finite_and_clipped(largest: float) -> None:
    rows = Table.of_numbers(np.array([[largest], [-largest], *[[0.0]] * 300]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded = TableEncoder.fit(rows).transform(rows)
    assert encoded[:3, 0].tolist() == [10, -10, 0]
