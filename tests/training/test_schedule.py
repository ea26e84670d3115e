from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from mnar.training.schedule import SCHEDULES, cosine, cosine_to_zero, linear, warm_up

FIXTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_numbers.json").read_text())


@pytest.mark.parametrize(("at", "lr"), FIXTURES["baselines"]["lr"].items())
def test_cosine_gives_the_learning_rates_of_the_fixtures(at: str, lr: float) -> None:
    progress = torch.tensor(float(at.rstrip("%")) / 100, dtype=torch.float64)
    assert 0.03 * cosine(progress).item() == pytest.approx(lr, rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 2 / 3, 0.99, 1.0])
def test_the_factors_equal_their_closed_formulas(share: float) -> None:
    expected = {
        "cosine": math.cos(7 * math.pi / 16 * share),
        "cosine_to_zero": 0.5 + 0.5 * math.cos(math.pi * share),
        "linear": 1 - share,
        "constant": 1.0,
    }
    progress = torch.tensor(share, dtype=torch.float64)
    factors = {name: schedule(progress).item() for name, schedule in SCHEDULES.items()}
    assert factors == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_steps", [1, 2, 900, 16_384, 43_000, 2**20])
def test_the_last_step_has_a_positive_rate_near_that_of_the_formula(num_steps: int) -> None:
    progress = torch.tensor(num_steps - 1) / num_steps  # float32, as the training loop calculates it
    rest = math.pi / (2 * num_steps)
    assert linear(progress).item() == pytest.approx(1 / num_steps, rel=0.1)
    assert cosine_to_zero(progress).item() == pytest.approx(math.sin(rest) ** 2, rel=0.1)
    assert linear(progress).item() > 0


def test_a_warm_up_rises_linearly_to_one_and_stays_there() -> None:
    factors = [warm_up(torch.tensor(share), 0.2).item() for share in (0.05, 0.1, 0.2, 0.5, 1.0)]
    assert factors == pytest.approx([0.25, 0.5, 1.0, 1.0, 1.0])
