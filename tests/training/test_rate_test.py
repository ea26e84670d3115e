"""The range test finds a learning rate from the training loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from mnar.training.rate_test import rate_of_lowest_loss, rising_rates, suggested_rate
from mnar.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
LABELS_ONLY = ("learner.name=supervised", "guidance.name=none", "train.schedule=constant")


def test_rates_rise_geometrically_with_the_given_rate_in_the_middle() -> None:
    rates = rising_rates(0.03, 41)
    ratios = {round(after / before, 9) for before, after in pairwise(rates)}
    assert len(ratios) == 1
    assert rates[20] == pytest.approx(0.03)
    assert (rates[0], rates[-1]) == (pytest.approx(3e-4), pytest.approx(3.0))


@pytest.mark.parametrize("lowest_at", [10, 40, 60])
def test_the_rate_with_the_lowest_smoothed_loss_is_found(lowest_at: int) -> None:
    """The loss is a parabola. Its smoothed values reach their minimum up to six steps later: a factor of 2.1."""
    rates = rising_rates(0.03, 75)
    losses = [1 + (step - lowest_at) ** 2 / 1000 for step in range(75)]
    found = rate_of_lowest_loss(rates, losses)
    assert found is not None
    assert rates[lowest_at] <= found <= rates[lowest_at + 6]


def test_noise_in_single_losses_moves_the_found_rate_by_less_than_a_factor_of_three() -> None:
    torch.manual_seed(0)
    rates = rising_rates(0.03, 75)
    smooth = torch.tensor([1 + (step - 45) ** 2 / 1000 for step in range(75)])
    noisy = [rate_of_lowest_loss(rates, (smooth + 0.1 * torch.randn(75)).tolist()) for _ in range(20)]
    middle = rate_of_lowest_loss(rates, smooth.tolist())
    assert middle is not None
    assert all(rate is not None and middle / 3 < rate < middle * 3 for rate in noisy)


def test_too_few_losses_find_no_rate() -> None:
    assert rate_of_lowest_loss(rising_rates(0.03, 75), [2.0, 90.0]) is None


def test_on_digits_the_suggestion_lies_between_useless_and_exploding_rates(trainer_of: MakeTrainer) -> None:
    rate = suggested_rate(trainer_of(*LABELS_ONLY), 75)
    assert 0.003 <= rate <= 0.3


@pytest.mark.parametrize("lr", [0.3, 0.003])
def test_the_suggestion_hardly_depends_on_the_rate_that_the_test_starts_from(
    trainer_of: MakeTrainer, lr: float
) -> None:
    usual, other = (suggested_rate(trainer_of(*LABELS_ONLY, f"train.lr={start}"), 75) for start in (0.03, lr))
    assert abs(math.log10(other / usual)) < 1


def test_a_loss_that_explodes_ends_the_test(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(*LABELS_ONLY, "train.lr=1000")
    rate = suggested_rate(trainer, 75)
    assert int(trainer.steps_done) < 75
    assert math.isfinite(rate)


@pytest.mark.parametrize("settings", [("train.schedule=cosine",), ("train.warmup=0.1",)])
def test_a_trainer_that_changes_the_rate_itself_is_refused(trainer_of: MakeTrainer, settings: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="choose the schedule 'constant' and no warm-up"):
        suggested_rate(trainer_of(*LABELS_ONLY, *settings), 75)
