"""The short list of samples to label next in the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files import PartlyLabeled, Table
from mnar.own_data import inputs
from mnar.own_data.inputs import fitted_rows, samples_of
from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.next_samples import next_samples
from mnar.own_data.page import portfolio
from mnar.own_data.page.portfolio import portfolio_short_list
from mnar.own_data.page.to_label import NUM_SHOWN, balanced, short_list
from mnar.own_data.portfolio.member import with_shares
from mnar.own_data.portfolio_model import Predictions

NUM_ROWS, NUM_LABELS = 90, 30
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_normal((NUM_ROWS, 3))
Y = np.where(np.arange(NUM_ROWS) % 3 == 0, np.arange(NUM_ROWS) % 2, -1)
BALANCED = RNG.dirichlet((1, 1), NUM_ROWS - NUM_LABELS)
SHARES = Interval(np.array([0.8, 0.2]), np.array([0.7, 0.1]), np.array([0.9, 0.3]))


def test_balancing_is_the_inverse_of_bayes_rule_with_the_shares_of_the_pool() -> None:
    np.testing.assert_allclose(balanced(with_shares(BALANCED, SHARES.for_bayes_rule()), SHARES), BALANCED)
    assert balanced(BALANCED, None) is BALANCED


def test_the_list_is_that_of_the_algorithm() -> None:
    pool, labeled, counts = FEATURES[Y < 0], FEATURES[Y >= 0], np.bincount(Y[Y >= 0])
    places = 1000 + np.arange(len(pool))
    found = short_list(BALANCED, pool, labeled, counts, SHARES, ("no", "yes"), places)
    expected = next_samples(BALANCED, pool, labeled, counts, SHARES, budget=NUM_SHOWN, class_names=("no", "yes"))
    assert found is not None
    assert found.rows.tolist() == (1000 + expected.rows).tolist()
    assert found.reasons == expected.reasons
    assert short_list(BALANCED[:0], pool[:0], labeled, counts, SHARES, ("no", "yes"), places[:0]) is None


def test_the_list_of_a_portfolio_that_was_fitted_to_a_part_of_the_data_names_rows_of_the_whole_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "MOST_POOL", 25)
    table = Table.of_numbers(FEATURES)
    names = [f"line {row}" for row in range(NUM_ROWS)]
    data = as_data_set(PartlyLabeled(table, Y, ("no", "yes"), names), held_out=0.0)
    samples, encoder = samples_of(data, 1)
    assert len(fitted_rows(data, 1)) == len(samples.y) == NUM_LABELS + 25
    seen: dict[str, Any] = {}

    def keep(probs: Any, features: Any, *others: Any) -> None:
        seen.update(probs=probs, features=features, places=others[-1])

    monkeypatch.setattr(portfolio, "short_list", keep)
    pool = np.flatnonzero(Y < 0)
    choice = cast(Any, SimpleNamespace(objective="balanced_accuracy", shares=SHARES))
    portfolio_short_list(data, samples, choice, pool, Predictions(BALANCED.argmax(1), BALANCED.max(1), BALANCED))
    assert len(seen["places"]) == 25
    of_places = encoder.inputs(data.train_x.numpy()[pool[seen["places"]]]).features
    np.testing.assert_array_equal(of_places, seen["features"])
    np.testing.assert_array_equal(BALANCED[seen["places"]], seen["probs"])
