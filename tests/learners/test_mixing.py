from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy import special, stats
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.learners.mixing import draw_mixing, mix, sharpen
from tests.reference.mixmatch import mixup
from tests.reference.mixmatch import sharpen as literal_sharpen

CPU = torch.device("cpu")


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 2.0])
def test_sharpen_equals_powers_over_their_sum(temperature: float) -> None:
    torch.manual_seed(0)
    probs = torch.randn(5, 4).softmax(1)
    expected = torch.tensor([literal_sharpen(row, temperature) for row in probs.tolist()])
    torch.testing.assert_close(sharpen(probs, temperature), expected)


def test_sharpen_holds_where_powers_vanish_and_leaves_a_one_hot_label_alone() -> None:
    even = torch.full((1, 1000), 0.001)
    torch.testing.assert_close(sharpen(even, 0.01), even)  # 0.001 ** 100 is 0 in float32
    one_hot = torch.tensor([[0.0, 1.0, 0.0]])
    assert torch.equal(sharpen(one_hot, 0.5), one_hot)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.75, 4.0])
def test_weights_have_the_mean_and_variance_of_a_folded_beta_variable(alpha: float) -> None:
    torch.manual_seed(0)
    num = 100_000
    weight, _ = draw_mixing(num, alpha, CPU)
    assert weight.min() >= 0.5
    assert weight.max() <= 1
    # Of Beta(a, a): the mean distance from 1/2, and the variance
    distance = 1 / (alpha * 4**alpha * special.beta(alpha, alpha))
    variance = 1 / (4 * (2 * alpha + 1))
    spread = math.sqrt(variance - distance**2)
    assert weight.mean().item() == pytest.approx(0.5 + distance, abs=4 * spread / math.sqrt(num))
    assert weight.var().item() == pytest.approx(spread**2, rel=0.1)


def test_weights_follow_the_folded_beta_distribution_by_kolmogorov_and_smirnov() -> None:
    torch.manual_seed(0)
    weight, _ = draw_mixing(20_000, 0.75, CPU)
    folded = stats.kstest(weight.double().numpy(), lambda w: 2 * stats.beta.cdf(w, 0.75, 0.75) - 1)
    assert folded.pvalue > 0.01


def test_each_row_has_a_weight_of_its_own() -> None:
    torch.manual_seed(0)
    weight, _ = draw_mixing(100, 0.75, CPU)
    assert len(set(weight.tolist())) == 100


def test_every_permutation_is_as_likely_as_any_other_by_chi_square() -> None:
    torch.manual_seed(0)
    drawn = Counter(tuple(draw_mixing(4, 0.75, CPU)[1].tolist()) for _ in range(2400))
    assert set(drawn) == set(permutations(range(4)))
    assert stats.chisquare(list(drawn.values())).pvalue > 0.01


def test_a_draw_is_repeated_from_the_saved_generator_state() -> None:
    draw_mixing(7, 0.75, CPU)
    state = torch.get_rng_state()
    first, second = draw_mixing(7, 0.75, CPU), draw_mixing(7, 0.75, CPU)
    torch.set_rng_state(state)
    for expected in (first, second):
        weight, order = draw_mixing(7, 0.75, CPU)
        assert torch.equal(weight, expected[0])
        assert torch.equal(order, expected[1])
    assert not torch.equal(first[0], second[0])


def test_a_draw_runs_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        weight, order = draw_mixing(7, 0.75, CPU)
        assert mix([torch.rand(7, 3, 4, 4)], weight, order).shape == (7, 3, 4, 4)


def test_mix_equals_the_literal_mixture_of_each_row() -> None:
    torch.manual_seed(0)
    rows, weight, order = torch.randn(6, 2, 3), torch.linspace(0.5, 1, 6), torch.tensor([2, 1, 5, 0, 3, 4])
    flat = rows.flatten(1).tolist()
    expected = [mixup(flat[i], flat[order[i]], weight[i].item()) for i in range(6)]
    torch.testing.assert_close(mix([rows[:2], rows[2:]], weight, order).flatten(1), torch.tensor(expected))


def test_mix_keeps_images_channels_last() -> None:
    images = torch.randn(6, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    mixed = mix([images], *draw_mixing(6, 0.75, CPU))
    assert mixed.is_contiguous(memory_format=torch.channels_last)
