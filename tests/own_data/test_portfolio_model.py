from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mnar.own_data import portfolio_model
from mnar.own_data.inputs import InputEncoder
from mnar.own_data.portfolio import Portfolio, members_for
from mnar.own_data.portfolio_model import PortfolioModel
from tests.support.half_labeled import clouds


@pytest.fixture
def model() -> PortfolioModel:
    """Members of every kind."""
    samples = clouds((20, 12, 6), 90, distance=2.0)
    names = ("linear", "kernel", "graph", "graph_local", "boosting", "network")
    members = [member for member in members_for(samples, iterations=5) if member.name in names]
    assert len(members) == len(names)
    fitted = tuple(member.fit(samples) for member in members)
    portfolio = Portfolio(fitted, np.linspace(0.1, 0.3, len(fitted)), np.full(3, 1 / 3), "balanced_accuracy")
    return PortfolioModel(portfolio, InputEncoder(np.zeros(3), np.ones(3)))


@pytest.fixture
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("keep_threads")
def test_predictions_do_not_depend_on_the_number_of_threads(
    model: PortfolioModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio_model, "ROWS_AT_A_TIME", 37)
    x = np.random.default_rng(0).normal(0, 2, (500, 3)).astype(np.float32)
    torch.set_num_threads(1)
    random_state = torch.get_rng_state()
    alone = model.balanced_probs(x)
    torch.set_num_threads(3)
    np.testing.assert_array_equal(model.balanced_probs(x), alone)
    assert torch.equal(
        torch.get_rng_state(), random_state
    )  # the networks that the threads build draw no numbers from it
    assert model.balanced_probs(x[:0]).shape == (0, 3)


def test_a_prediction_does_not_depend_on_the_other_rows(model: PortfolioModel) -> None:
    x = np.random.default_rng(0).normal(0, 2, (60, 3)).astype(np.float32)
    together = model.balanced_probs(x)
    one_by_one = np.concatenate([model.balanced_probs(row[None]) for row in x])
    np.testing.assert_allclose(one_by_one, together, atol=1e-9)
