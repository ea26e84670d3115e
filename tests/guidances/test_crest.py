"""CReST and CReST+ against golden numbers, a literal oracle, and what must hold whatever the input."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar.guidances.crest import CReST, sampling_rates, select_surest
from mnar.guidances.distribution_alignment import DistributionAlignment
from mnar.learners import FixMatch
from mnar.learners.ups import UPS
from mnar.types import Predict, Selection, Task
from tests.reference import crest as reference
from tests.reference.distribution_alignment import LiteralAlignment

FIXTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_numbers.json").read_text())
GOLDEN, GOLDEN_COUNTS = FIXTURES["baselines"]["CReST"], FIXTURES["counts"]["cadr/cifar10/gamma20"]
NUM_UNLABELED, BATCH = 60, 16
COUNTS = [3, 0, 20, 3, 8]  # neither sorted nor without ties and holes


def labels_of(counts: list[int]) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


def make_task(counts: list[int] = COUNTS) -> Task:
    return Task(len(counts), NUM_UNLABELED, labels_of(counts), batch_unlabeled=BATCH)


def random_batches(count: int, num_classes: int = len(COUNTS)) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for n in range(count):
        size = BATCH - n % 3
        logits = 3 * torch.randn(size, num_classes, generator=generator)
        yield logits.softmax(1), torch.randint(NUM_UNLABELED, (size,), generator=generator)


def random_logits(generator: torch.Generator, num_rows: int, num_classes: int) -> Tensor:
    """Sharp and flat ones, so that the largest logit is not the surest; every third row has a twin."""
    scale = 4 * torch.rand(num_rows, 1, generator=generator)
    shift = 5 * torch.randn(num_rows, 1, generator=generator)
    logits = scale * torch.randn(num_rows, num_classes, generator=generator) + shift
    logits[: num_rows // 3] = logits[-(num_rows // 3) :]
    return logits


def predicting(logits: Tensor, labeled_rows: Sequence[int] = ()) -> Predict:
    def predict(*, labeled: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.tensor([row for row in range(len(logits)) if labeled or row not in labeled_rows])
        yield from zip(rows.split(BATCH), logits[rows].unsqueeze(0).split(BATCH, 1), strict=True)

    return predict


def pairs(selection: Selection) -> list[tuple[int, int]]:
    return list(zip(selection.rows.tolist(), selection.labels.tolist(), strict=True))


# Golden numbers


def test_rates_equal_the_golden_numbers() -> None:
    rates = sampling_rates(torch.tensor(GOLDEN_COUNTS), 1 / 3)
    assert_close(rates, torch.tensor(GOLDEN["rates"], dtype=torch.float64), atol=1e-12, rtol=0)


def test_with_100_predictions_of_each_class_as_many_join_as_the_golden_numbers_say() -> None:
    logits = torch.eye(10).repeat(100, 1) * torch.linspace(1, 9, 1000).unsqueeze(1)
    crest = CReST(Task(10, 1000, labels_of(GOLDEN_COUNTS)))
    selection = crest.relabel(predicting(logits), 0)
    assert selection.labels.bincount().tolist() == GOLDEN["picked_of_100"]
    assert selection.pool is None
    assert selection.negative is None


def test_tempering_equals_the_golden_numbers_in_each_generation() -> None:
    crest = CReST(make_task(), align=True)
    tempering = [crest.tempering.item()]
    for generation in range(crest.generations - 1):
        crest.relabel(predicting(torch.zeros(1, len(COUNTS))), generation)
        tempering.append(crest.tempering.item())
    assert tempering == pytest.approx(GOLDEN["t"])


# Sampling rates


@pytest.mark.parametrize("alpha", [0.0, 1 / 3, 0.5, 1.0, 3.0])
def test_rates_equal_the_literal_ranking_in_200_random_cases_with_ties_and_classes_without_labels(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        k = int(torch.randint(2, 12, (), generator=generator))
        counts = torch.randint(9, (k,), generator=generator)
        counts[0] += 1
        expected = torch.tensor(reference.rates(counts.tolist(), alpha), dtype=torch.float64)
        assert_close(sampling_rates(counts, alpha), expected)


def test_classes_in_another_order_have_the_same_rates_in_that_order() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([50, 33, 21, 14, 9, 6, 4, 3, 0, 1])
    rates = sampling_rates(counts, 1 / 3)
    for _ in range(20):
        order = torch.randperm(len(counts), generator=generator)
        assert torch.equal(sampling_rates(counts[order], 1 / 3), rates[order])


def test_of_equal_counts_the_lower_class_number_is_the_more_frequent_wherever_they_stand() -> None:
    assert_close(sampling_rates(torch.tensor([2, 8, 2, 4]), 1.0).tolist(), [0.5, 0.25, 1.0, 0.25])
    assert_close(sampling_rates(torch.tensor([8, 4, 2, 2]), 1.0).tolist(), [0.25, 0.25, 0.5, 1.0])


def test_balanced_labels_let_everybody_join() -> None:
    assert sampling_rates(torch.full((7,), 4), 1 / 3).tolist() == [1.0] * 7


def test_a_class_without_labels_has_rate_1_and_leaves_the_others_as_they_are_without_it() -> None:
    with_it, without = (
        sampling_rates(torch.tensor([3, 20, 0, 8]), 1 / 3),
        sampling_rates(torch.tensor([3, 20, 8]), 1 / 3),
    )
    assert with_it[2] == 1
    assert torch.equal(with_it[[0, 1, 3]], without)
    assert (without > 0).all()


# Selection


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(2)], ids=str)
def test_selection_equals_the_literal_loop_in_40_random_cases_with_ties_and_labelled_rows(alpha: Fraction) -> None:
    generator = torch.Generator().manual_seed(0)
    num_selected = 0
    for _ in range(40):
        counts = (torch.randint(9, (5,), generator=generator) + torch.tensor([1, 0, 0, 0, 0])).tolist()
        labeled_rows = torch.randperm(NUM_UNLABELED, generator=generator)[:7].tolist()
        logits = random_logits(generator, NUM_UNLABELED, len(counts))
        crest = CReST(make_task(counts), alpha=float(alpha))
        selection = crest.relabel(predicting(logits, labeled_rows), 0)
        probs = logits.double().softmax(1).tolist()
        assert pairs(selection) == reference.select(probs, counts, labeled_rows, alpha)
        num_selected += len(selection.rows)
    assert num_selected > 40


def test_without_rows_that_are_labelled_already_all_may_join() -> None:
    logits = random_logits(torch.Generator().manual_seed(0), NUM_UNLABELED, len(COUNTS))
    selection = CReST(make_task(), alpha=0.0).relabel(predicting(logits), 0)
    assert sorted(selection.rows.tolist()) == list(range(NUM_UNLABELED))
    assert torch.equal(selection.labels, logits.argmax(1)[selection.rows])


@pytest.mark.parametrize(("frequent", "rare", "size", "expected"), [(2197, 1728, 13, 12), (12167, 2197, 23, 13)])
def test_a_share_that_is_a_whole_number_is_not_rounded_below_it(
    frequent: int, rare: int, size: int, expected: int
) -> None:
    """int(13 * (1728 / 2197) ** (1 / 3)) would be 11."""
    rates = sampling_rates(torch.tensor([frequent, rare]), 1 / 3)
    label = torch.zeros(size, dtype=torch.int64)
    assert len(select_surest(torch.rand(size), label, rates)) == expected
    assert reference.quota(size, rare, frequent, Fraction(1, 3)) == expected


def test_the_surer_of_two_that_are_both_1_in_float32_joins_first() -> None:
    logits = torch.tensor([[25.0, 0.0], [20.0, 0.0], [30.0, 0.0]])
    assert logits.softmax(1)[:, 0].tolist() == [1, 1, 1]
    selection = CReST(make_task([3, 1]), alpha=1.0).relabel(predicting(logits), 0)
    assert pairs(selection) == [(2, 0)]


def test_a_sample_whose_prediction_is_not_a_number_does_not_join() -> None:
    logits = torch.tensor([[1.0, 0.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 1.0]])
    selection = CReST(make_task([1, 1])).relabel(predicting(logits), 0)
    assert pairs(selection) == [(0, 0), (3, 1)]


def test_a_selection_depends_on_no_selection_before_it() -> None:
    generator = torch.Generator().manual_seed(0)
    crest = CReST(make_task(), align=True)
    for generation in range(3):
        logits = random_logits(generator, NUM_UNLABELED, len(COUNTS))
        expected = CReST(make_task(), align=True).relabel(predicting(logits), 0)
        assert pairs(crest.relabel(predicting(logits), generation)) == pairs(expected)


# Alignment


def test_without_alignment_a_prediction_is_left_as_it_is_and_nothing_is_kept_but_the_generation() -> None:
    crest = CReST(make_task())
    for probs, index in random_batches(5):
        assert torch.equal(crest(probs, index), probs)
    assert crest.logs() == {}
    assert set(crest.state_dict()) == {"generation"}


@pytest.mark.parametrize(("generations", "t_min"), [(6, 0.5), (2, 0.0), (3, 1.0), (1, 0.5)])
def test_alignment_equals_the_literal_one_with_the_tempered_target_in_each_generation(
    generations: int, t_min: float
) -> None:
    counts = [3, 1, 20, 3, 8]
    crest = CReST(make_task(counts), generations=generations, align=True, t_min=t_min, window=7)
    at_first = copy.deepcopy(crest.state_dict())
    for generation in range(generations):
        t = reference.tempering(generation, generations, t_min)
        oracle = LiteralAlignment(reference.target(counts, t), window=7)
        for probs, index in random_batches(20):
            assert_close(crest(probs, index), torch.tensor(oracle(probs.tolist())), atol=1e-5, rtol=1e-4)
        crest.load_state_dict(at_first)  # as the loop does
        crest.relabel(predicting(torch.zeros(1, len(counts))), generation)


def test_the_first_generation_is_distribution_alignment_with_its_log() -> None:
    crest, alignment = CReST(make_task(), align=True), DistributionAlignment(make_task())
    for probs, index in random_batches(10):
        assert_close(crest(probs, index), alignment(probs, index))
        assert_close(crest.logs(), alignment.logs())


def test_a_class_without_labels_keeps_the_alignment_finite_and_is_part_of_a_uniform_target() -> None:
    crest = CReST(make_task(), generations=2, align=True, t_min=0.0)
    assert crest.target[1] == 0
    crest.relabel(predicting(torch.zeros(1, len(COUNTS))), 0)
    assert crest.target.tolist() == pytest.approx([1 / 5] * 5)
    for probs, index in random_batches(3):
        assert torch.isfinite(crest(probs, index)).all()


# What every guidance promises


@pytest.mark.parametrize("align", [False, True])
def test_rows_are_float32_distributions_without_gradient_and_the_input_stays_as_it_was(align: bool) -> None:
    crest = CReST(make_task(), align=align)
    for probs, index in random_batches(6):
        before = probs.clone()
        for dtype in (torch.int32, torch.int64):
            q = crest(probs.requires_grad_(), index.to(dtype))
            assert q.dtype == torch.float32
            assert not q.requires_grad
            assert_close(q.sum(1), torch.ones(len(q)))
        assert torch.equal(probs, before)


@pytest.mark.parametrize("align", [False, True])
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(align: bool) -> None:
    with FakeTensorMode():
        task = Task(4, NUM_UNLABELED, torch.tensor([0, 0, 1, 2]), batch_unlabeled=BATCH)
        crest = CReST(task, align=align)
        for _ in range(2):
            assert crest(torch.rand(BATCH, 4).softmax(1), torch.arange(BATCH)).shape == (BATCH, 4)
            assert all(value.shape == () for value in crest.logs().values())


def test_state_dict_in_a_later_generation_continues_bit_for_bit_with_its_target() -> None:
    crest, resumed = CReST(make_task(), align=True), CReST(make_task(), align=True)
    addresses = {name: buffer.data_ptr() for name, buffer in crest.named_buffers()}
    crest.relabel(predicting(torch.zeros(1, len(COUNTS))), 2)
    history = list(random_batches(20))
    for probs, index in history[:10]:
        crest(probs, index)
    assert set(crest.state_dict()) == {"generation", "alignment.history", "alignment.batches"}
    resumed.load_state_dict(copy.deepcopy(crest.state_dict()))
    assert int(resumed.generation) == 3
    assert not torch.allclose(resumed.target, resumed.labeled_shares), "a target that can be told apart"
    for probs, index in history[10:]:
        assert torch.equal(crest(probs, index), resumed(probs, index))
    assert {name: buffer.data_ptr() for name, buffer in crest.named_buffers()} == addresses, "changed in place"
    assert list(crest.parameters()) == []


# Bad input


def test_a_learner_that_can_restart_has_its_generations_and_one_that_cannot_is_refused() -> None:
    crest = CReST(make_task())
    assert FixMatch(make_task(), crest).generations == crest.generations == 6
    with pytest.raises(ValueError, match=r"UPS does not support CReST, which trains in generations \(relabel\)"):
        UPS(make_task(), crest)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"generations": 0}, "generations is 0"),
        ({"alpha": -0.5}, "alpha is -0.5"),
        ({"alpha": math.inf}, "alpha is inf"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"t_min": -0.1}, "t_min is -0.1"),
        ({"t_min": 1.1}, "t_min is 1.1"),
        ({"t_min": math.nan}, "t_min is nan"),
        ({"window": 0}, "window is 0"),
    ],
)
@pytest.mark.parametrize("align", [False, True])
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str, align: bool) -> None:
    with pytest.raises(ValueError, match=named):
        CReST(make_task(), align=align, **options)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_task_without_labels_is_refused(labeled_targets: Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        CReST(Task(3, NUM_UNLABELED, labeled_targets))


@pytest.mark.parametrize("align", [False, True])
def test_a_bad_call_is_an_error_that_changes_nothing(align: bool) -> None:
    crest = CReST(make_task(), align=align)
    before = copy.deepcopy(crest.state_dict())
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        crest(torch.full((1, len(COUNTS)), 0.2), torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        crest(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    for name, value in crest.state_dict().items():
        assert torch.equal(value, before[name]), name
