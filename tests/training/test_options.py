from __future__ import annotations

import pytest

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.training.options import TrainOptions


@pytest.mark.parametrize(
    ("iterations", "decay"),
    [(1, 0.9), (18, 0.9), (180, 0.9), (900, 0.98), (3600, 0.995), (18_000, 0.999), (2**20, 0.999)],
)
def test_an_automatic_average_covers_an_eighteenth_of_the_steps_within_its_limits(
    iterations: int, decay: float
) -> None:
    assert TrainOptions(iterations=iterations, ema="auto").ema == pytest.approx(decay, abs=1e-12)
    assert TrainOptions(iterations=iterations, ema=0.5).ema == 0.5


def test_digits_have_the_automatic_average_by_default() -> None:
    assert configure(dataset="digits", settings=["train.ema=auto"]) == configure(dataset="digits")


def test_the_configuration_shows_the_number_that_an_automatic_average_stands_for() -> None:
    config = configure(dataset="cifar10", iterations=3600, settings=["train.ema=auto"])
    assert "ema: 0.995\n" in config.to_yaml()
    assert RunConfig.from_yaml(config.to_yaml().replace("ema: 0.995", "ema: auto")) == config


@pytest.mark.parametrize("ema", [-0.1, 1.0, 2.0])
def test_an_average_outside_of_its_range_is_refused(ema: float) -> None:
    with pytest.raises(ValueError, match=r"train\.ema is .*; expected a number of at least 0 and below 1 or 'auto'"):
        TrainOptions(ema=ema)


def test_a_weight_decay_that_would_turn_the_weights_around_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train.lr is 0.5 and train.weight_decay is 10.0; Muon .*Choose e.g."):
        TrainOptions(optimizer="muon", lr=0.5, weight_decay=10)
    TrainOptions(optimizer="sgd", lr=0.5, weight_decay=10)
