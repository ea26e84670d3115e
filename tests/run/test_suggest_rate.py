"""The learning rate of a run is chosen by a range test that disturbs nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import load_data
from mnar.run.suggest_rate import FEWEST_STEPS, NUM_STEPS, num_test_steps, with_suggested_rate
from mnar.training.options import TrainOptions
from mnar.types import DataSet

Configure = Callable[..., RunConfig]


def test_only_the_rate_changes_and_the_random_state_stays(tiny: Configure, digits_data: DataSet) -> None:
    config = tiny("train.warmup=0.05", "train.max_grad_norm=1", iterations=300)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    chosen = with_suggested_rate(config, digits_data)
    assert torch.equal(torch.get_rng_state(), before)
    (difference,) = config.differences(chosen)
    assert difference.startswith("train.lr: 0.03 and ")
    assert chosen == with_suggested_rate(config, digits_data)
    assert RunConfig.from_yaml(chosen.to_yaml()) == chosen


def test_a_training_that_is_too_short_keeps_its_rate(tiny: Configure, digits_data: DataSet) -> None:
    config = tiny(iterations=20)
    assert with_suggested_rate(config, digits_data) == config


def test_a_learner_on_a_pretrained_encoder_keeps_its_rate() -> None:
    config = configure(dataset="digits_tabular", settings=["engine.device=cpu"])
    assert config.learner.name == "vime"
    assert with_suggested_rate(config, load_data(config)) == config


@pytest.mark.parametrize("iterations", [10, 600, 1500, 10**6])
@pytest.mark.parametrize("batch_unlabeled", [0, 448])
def test_the_test_takes_at_most_a_twentieth_of_the_samples(iterations: int, batch_unlabeled: int) -> None:
    options = TrainOptions(iterations=iterations, batch_labeled=32)
    steps = num_test_steps(options, iterations * (32 + batch_unlabeled))
    assert steps <= NUM_STEPS
    assert steps * 32 <= 0.05 * iterations * (32 + batch_unlabeled)
    assert (steps >= FEWEST_STEPS) == (iterations * (32 + batch_unlabeled) >= 600 * 32)
