"""DARP's solver and its noise removal against slow exact ones, and against what a solution must fulfil."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar.guidances.refinery import refine, remove_noise
from tests.reference import darp as literal

SHAPES = [(30, 2), (60, 4), (100, 7)]


def random_probs(num_samples: int, num_classes: int, *, spread: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(num_samples, num_classes, generator=generator)).softmax(1)


def counts(num_samples: int, num_classes: int, *, ratio: float) -> Tensor:
    """The first class has `ratio` times as many as the last."""
    shares = ratio ** -torch.linspace(0, 1, num_classes, dtype=torch.float64)
    return num_samples * shares / shares.sum()


def entropies(probs: Tensor) -> Tensor:
    return torch.tensor(literal.entropies(probs.tolist()), dtype=torch.float64)


# The solver


@pytest.mark.parametrize(("num_samples", "num_classes"), SHAPES)
@pytest.mark.parametrize("ratio", [1, 0.2, 50])
@pytest.mark.parametrize("iterations", [1, 10])
def test_refine_equals_root_searches_class_by_class(
    num_samples: int, num_classes: int, ratio: float, iterations: int
) -> None:
    probs, target = random_probs(num_samples, num_classes), counts(num_samples, num_classes, ratio=ratio)
    refined = refine(probs, target, iterations=iterations)
    exact = torch.tensor(literal.refine(probs.double().tolist(), target.tolist(), iterations))
    assert_close(refined, exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("ratio", [1, 0.2, 50])
def test_many_iterations_lead_to_the_optimum_of_the_convex_problem(ratio: float) -> None:
    probs, target = random_probs(60, 4).double(), counts(60, 4, ratio=ratio)
    refined = refine(probs, target, iterations=500)
    optimum = literal.optimum(probs.tolist(), target.tolist())
    assert_close(refined, torch.tensor(optimum, dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close(refined.sum(0), target, atol=1e-6, rtol=0)


@pytest.mark.parametrize("iterations", [1, 10])
def test_rows_sum_to_one_and_moves_are_a_price_of_the_row_and_one_of_the_class(iterations: int) -> None:
    """Stationarity: w_n log(X_nc / P_nc) = -lambda_n - nu_c, so taking off row and column means leaves nothing."""
    probs, target = random_probs(200, 5).double(), counts(200, 5, ratio=20)
    refined = refine(probs, target, iterations=iterations)
    assert_close(refined.sum(1), torch.ones(200).double())
    paid = (refined / probs).log() / entropies(probs).unsqueeze(1)
    assert paid.std() > 0.1
    assert_close(paid - paid.mean(0) - paid.mean(1, keepdim=True) + paid.mean(), torch.zeros_like(paid))


def test_column_sums_come_closer_with_every_few_iterations() -> None:
    probs, target = random_probs(500, 10), counts(500, 10, ratio=100)
    errors = [float((refine(probs, target, iterations=n).sum(0) - target).abs().sum()) for n in (1, 3, 10, 30, 100)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1


@pytest.mark.parametrize("iterations", [1, 10])
def test_a_target_that_the_predictions_have_already_changes_nothing(iterations: int) -> None:
    probs = random_probs(300, 6)
    assert_close(refine(probs, probs.double().sum(0), iterations=iterations), probs, atol=1e-6, rtol=0)


def test_certain_rows_move_less_than_uncertain_ones() -> None:
    probs = torch.tensor([[0.999, 0.001], [0.9, 0.1], [0.6, 0.4]] * 10)
    moved = (probs - refine(probs, torch.tensor([15.0, 15.0]), iterations=10))[:3, 0]
    assert 0 < moved[0] < moved[1] < moved[2]


def test_a_class_that_is_to_have_nobody_gets_nobody() -> None:
    probs, target = random_probs(100, 3), torch.tensor([70.0, 30.0, 0.0])
    refined = refine(probs, target, iterations=10)
    assert torch.isfinite(refined).all()
    assert_close(refined.sum(1), torch.ones(100))
    assert refined[:, 2].sum() < 0.01


@pytest.mark.parametrize("target", [[20.0, 20.0, 20.0], [60.0, 0.0, 0.0], [0.0, 30.0, 30.0], [58.0, 1.0, 1.0]])
@pytest.mark.parametrize("num_certain", [30, 60])
def test_one_hot_rows_that_exceed_the_target_give_finite_distributions(target: list[float], num_certain: int) -> None:
    probs = random_probs(60, 3)
    probs[:num_certain] = torch.eye(3)[0]
    refined = refine(probs, torch.tensor(target), iterations=10)
    assert torch.isfinite(refined).all()
    assert (refined >= 0).all()
    assert_close(refined.sum(1), torch.ones(60))


def test_entropies_over_six_orders_of_magnitude_are_solved_like_the_root_searches() -> None:
    probs = torch.cat([random_probs(20, 3, spread=spread) for spread in (0.1, 1, 4, 8)]).double()
    probs = probs.clamp(min=1e-9) / probs.clamp(min=1e-9).sum(1, keepdim=True)
    assert entropies(probs).max() / entropies(probs).min() > 1e5
    target = counts(80, 3, ratio=3)
    exact = literal.refine(probs.tolist(), target.tolist(), 10)
    assert_close(refine(probs.float(), target, iterations=10), torch.tensor(exact), atol=1e-4, rtol=0)


# Noise removal


@pytest.mark.parametrize(("num_samples", "num_classes"), SHAPES)
@pytest.mark.parametrize("ratio", [1, 0.2, 50])
@pytest.mark.parametrize("delta", [0.7, 2.0, 100.0])
def test_remove_noise_equals_the_literal_loop(num_samples: int, num_classes: int, ratio: float, delta: float) -> None:
    probs, target = random_probs(num_samples, num_classes), counts(num_samples, num_classes, ratio=ratio)
    expected = literal.remove_noise(probs.double().tolist(), target.tolist(), delta)
    assert_close(remove_noise(probs, target, delta), torch.tensor(expected), atol=1e-6, rtol=1e-4)


def test_of_equal_probabilities_exactly_as_many_are_kept_as_of_others() -> None:
    probs, target = torch.full((50, 5), 0.2), torch.tensor([10.0, 10, 5, 2, 23], dtype=torch.float64)
    expected = literal.remove_noise(probs.tolist(), target.tolist(), 2.0)
    assert_close(remove_noise(probs, target, 2.0), torch.tensor(expected), atol=1e-6, rtol=1e-4)


def test_a_class_that_is_to_have_nobody_keeps_no_candidate() -> None:
    cleaned = remove_noise(random_probs(40, 3), torch.tensor([30.0, 10.0, 0.0]), 2.0)
    assert torch.isfinite(cleaned).all()
    assert_close(cleaned.sum(1), torch.ones(40))
    assert torch.equal(cleaned[:, 2], cleaned.amin(1))


def test_a_whole_number_of_candidates_survives_rounding() -> None:
    """0.07 * 100 is a little less than 7 in float32 and a little more in float64."""
    probs = torch.linspace(0, 1, 100).unsqueeze(1) * torch.tensor([1.0, 0.0]) + torch.tensor([0.0, 0.5])
    cleaned = remove_noise(probs, 100 * torch.tensor([0.07, 0.93], dtype=torch.float64), 1.0)
    assert int((cleaned[:, 0] > 1e-5).sum()) == 7


def test_input_stays_as_it_was() -> None:
    probs, target = random_probs(50, 4), counts(50, 4, ratio=10)
    before = probs.clone(), target.clone()
    refine(remove_noise(probs, target, 2.0), target, iterations=2)
    assert torch.equal(probs, before[0])
    assert torch.equal(target, before[1])


def test_both_run_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        probs, target = torch.rand(50, 4).softmax(1), torch.rand(4, dtype=torch.float64)
        refined = refine(remove_noise(probs, target, 2.0), target, iterations=2)
    assert refined.shape == (50, 4)
    assert refined.dtype == torch.float32


def test_a_pool_of_20_000_reaches_its_long_tailed_counts() -> None:
    probs, target = random_probs(20_000, 10, spread=3), counts(20_000, 10, ratio=100)
    refined = refine(remove_noise(probs, target, 2.0), target, iterations=10)
    wrong = (refined.sum(0) - target).abs().sum() / 2 / 20_000
    assert wrong < 0.02 < (probs.sum(0) - target).abs().sum() / 2 / 20_000
    assert math.isclose(float(refined.sum()), 20_000, rel_tol=1e-5)
