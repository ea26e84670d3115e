"""The test whether labels are missing at random, with the predictions of a member of the portfolio."""

from __future__ import annotations

import numpy as np

from mnar.own_data.portfolio import fit_portfolio, members_for
from mnar.own_data.portfolio.member import Inputs, Samples
from mnar.own_data.portfolio.members import named_member

NUM_ROWS, NUM_LABELS = 400, 80
SHARES = (0.5, 0.3, 0.2)


def p_value(seed: int, chance_of_a_label: tuple[float, ...]) -> float:
    """Three overlapping clouds, in which a row of each class gets a label with this relative chance."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(3, NUM_ROWS, p=SHARES)
    x = (2 * np.eye(3)[truth] + rng.standard_normal((NUM_ROWS, 3))).astype(np.float32)
    chance = np.array(chance_of_a_label)[truth]
    labeled = rng.choice(NUM_ROWS, NUM_LABELS, replace=False, p=chance / chance.sum())
    y = np.full(NUM_ROWS, -1)
    y[labeled] = truth[labeled]
    samples = Samples(Inputs(x, training_rows=np.arange(NUM_ROWS)), y, 3, seed)
    members = [named_member("kernel", members_for(samples, fast=True))]
    choice = fit_portfolio(samples, members, test_at_random=True).choice
    assert choice is not None
    assert choice.at_random is not None
    return choice.at_random.p_value


def test_labels_missing_by_class_are_detected_and_labels_missing_at_random_are_not() -> None:
    assert [p_value(seed, (1.0, 0.2, 0.03)) < 0.05 for seed in range(2)] == [True] * 2
    at_random = np.array([p_value(seed, (1.0, 1.0, 1.0)) for seed in range(6)])
    assert np.count_nonzero(at_random < 0.05) <= 2, "a valid test rejects in one of twenty cases"
    assert at_random.max() > 0.3


def test_without_a_pool_or_with_too_few_labels_of_every_class_there_is_no_test() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 3)).astype(np.float32)
    for y in (np.arange(30) % 3, np.where(np.arange(30) < 12, np.arange(30) % 3, -1)):
        samples = Samples(Inputs(x, training_rows=np.arange(30)), y, 3, 0)
        members = [named_member("kernel", members_for(samples, fast=True))]
        choice = fit_portfolio(samples, members, test_at_random=True).choice
        assert choice is not None
        assert choice.at_random is None


def test_the_test_is_made_only_if_it_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    y = np.where(np.arange(60) < 30, np.arange(60) % 3, -1)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    samples = Samples(Inputs(x, training_rows=np.arange(60)), y, 3, 0)
    choice = fit_portfolio(samples, [named_member("kernel", members_for(samples, fast=True))]).choice
    assert choice is not None
    assert choice.at_random is None
