"""DARP against a literal oracle over many steps, and its targets, its state and what it refuses."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.guidances import PRG, Chain
from mnar.guidances.darp import DARP, class_mix
from mnar.types import Task
from tests.reference.darp import LiteralDARP, solve_mix

NUM_CLASSES, NUM_UNLABELED, BATCH = 4, 40, 16
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
LABELED_COUNTS = (5 / 12 * 40, 3 / 12 * 40, 2 / 12 * 40, 2 / 12 * 40)


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, batch_unlabeled=BATCH)


def random_batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of any size up to the largest, with samples that stand in one more than once."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        size = int(torch.randint(1, BATCH + 1, (), generator=generator))
        logits = 2 * torch.randn(size, NUM_CLASSES, generator=generator)
        yield logits.softmax(1), torch.randint(NUM_UNLABELED, (size,), generator=generator)


def labeled_batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, NUM_CLASSES, generator=generator)
    return logits, torch.randint(NUM_CLASSES, (size,), generator=generator)


# The method


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, LABELED_COUNTS),
        ({"target": (1.0, 9.0, 10.0, 20.0), "iterations": 3}, (1, 9, 10, 20)),
        ({"target": (0.1, 0.2, 0.3, 0.4), "delta": 1.0}, (4, 8, 12, 16)),
    ],
    ids=str,
)
def test_darp_equals_the_literal_version_over_60_steps_with_a_refresh_every_7(
    options: dict[str, Any], counts: tuple[float, ...]
) -> None:
    darp = DARP(make_task(), **options)
    oracle = LiteralDARP(NUM_UNLABELED, counts, **{name: value for name, value in options.items() if name != "target"})
    for step, (probs, index) in enumerate(random_batches(60), start=1):
        expected = torch.tensor(oracle(probs.tolist(), index.tolist()))
        assert_close(darp(probs, index), expected, atol=1e-4, rtol=0)
        assert_close(darp.store[:-1], torch.tensor(oracle.store))
        if step % 7 == 0:
            darp.refresh()
            oracle.refresh()


def test_before_the_first_refresh_a_pseudo_label_is_the_prediction() -> None:
    darp = DARP(make_task())
    for probs, index in random_batches(10):
        assert torch.equal(darp(probs, index), probs)


def test_after_a_refresh_a_new_prediction_changes_the_store_but_not_the_pseudo_label() -> None:
    darp = DARP(make_task())
    for probs, index in random_batches(10):
        darp(probs, index)
    darp.refresh()
    index = torch.tensor([3, 7])
    stale = darp.refined[index].clone()
    for probs in (torch.eye(4)[[0, 1]], torch.eye(4)[[2, 3]]):
        assert torch.equal(darp(probs, index), stale)
        assert torch.equal(darp.store[index], probs)
    darp.refresh()
    assert not torch.equal(darp(probs, index), stale)


def test_of_a_sample_that_stands_in_a_batch_several_times_the_last_prediction_is_kept() -> None:
    darp = DARP(make_task())
    probs = torch.eye(4)[[0, 1, 2, 3, 1]]
    darp(probs, torch.tensor([5, 9, 5, 5, 9]))
    assert torch.equal(darp.store[[5, 9]], torch.eye(4)[[3, 1]])
    others = torch.ones(NUM_UNLABELED, dtype=torch.bool)
    others[[5, 9]] = False
    assert (darp.store[:-1][others] == 0.25).all()


def test_the_refined_pool_has_the_counts_of_the_target() -> None:
    darp = DARP(make_task(), target=(4.0, 6.0, 10.0, 20.0), iterations=200)
    for probs, index in random_batches(50):
        darp(probs, index)
    darp.refresh()
    assert_close(darp.refined.sum(0), torch.tensor([4.0, 6.0, 10.0, 20.0]), atol=0.01, rtol=0)
    assert_close(darp.refined.sum(1), torch.ones(NUM_UNLABELED))


def test_the_log_is_the_share_of_the_pool_that_is_in_a_wrong_class() -> None:
    darp = DARP(make_task(), iterations=1)
    assert darp.logs()["column_error"] == 0
    for probs, index in random_batches(10):
        darp(probs, index)
    darp.refresh()
    excess = (darp.refined.sum(0) - torch.tensor(LABELED_COUNTS)).clamp(min=0).sum() / NUM_UNLABELED
    assert darp.logs()["column_error"].item() == pytest.approx(excess.item(), abs=1e-5)
    assert excess > 1e-3


def test_warmup_and_every_are_when_the_loop_refreshes() -> None:
    assert (DARP(make_task()).refresh_from, DARP(make_task()).refresh_every) == (0.4, 10)
    darp = DARP(make_task(), warmup=0.25, every=100)
    assert (darp.refresh_from, darp.refresh_every) == (0.25, 100)


def test_one_prediction_that_is_not_a_number_leaves_the_store_as_it_was() -> None:
    darp, spared = DARP(make_task()), DARP(make_task())
    for probs, index in random_batches(10):
        darp(probs, index)
        spared(probs, index)
    darp(torch.full((2, NUM_CLASSES), math.nan), torch.tensor([1, 2]))
    assert torch.equal(darp.store, spared.store)
    darp.refresh()
    assert torch.isfinite(darp.refined).all()


def test_several_processes_all_remember_what_each_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it has seen sample 39 as class 2, and sample 0 after this one."""
    probs, index = torch.eye(4)[[2, 3]], torch.tensor([39, 0])
    others = {torch.float32: probs, torch.int64: index}
    monkeypatch.setattr(distributed, "gather", lambda local, **_: torch.cat([local, others[local.dtype]]))
    darp = DARP(make_task())
    q = darp(torch.eye(4)[[0, 1]], torch.tensor([0, 1]))
    assert torch.equal(q, torch.eye(4)[[0, 1]])
    assert torch.equal(darp.store[[0, 1, 39]], torch.eye(4)[[3, 1, 2]])


@pytest.mark.parametrize("refreshed", [False, True])
def test_output_is_float32_distributions_without_gradient_and_input_stays(refreshed: bool) -> None:
    darp = DARP(make_task())
    for (probs, index), dtype in itertools.product(random_batches(8), [torch.float32, torch.bfloat16]):
        probs = probs.to(dtype).requires_grad_()
        before = probs.detach().clone()
        q = darp(probs, index.int())
        assert q.dtype == torch.float32
        assert not q.requires_grad
        assert_close(q.sum(1), torch.ones(len(q)), atol=1e-5 if dtype is torch.float32 or refreshed else 1e-2, rtol=0)
        assert torch.equal(probs, before)
        if refreshed:
            darp.refresh()


def test_in_a_chain_the_refresh_is_darps_and_prg_rectifies_refined_rows() -> None:
    task = make_task()
    chain, darp, prg = Chain(DARP(task, every=3), PRG(task)), DARP(task), PRG(task)
    assert (chain.refresh_every, chain.refresh_from, chain.needs) == (3, 0.4, {"refresh"})
    for probs, index in random_batches(12):
        assert torch.equal(chain(probs, index), prg(darp(probs, index), index))
        chain.refresh()
        darp.refresh()


# Targets


def test_counts_shares_and_labels_that_say_the_same_are_the_same_target() -> None:
    task = make_task()
    targets = [DARP(task, target=target).target for target in (LABELED_COUNTS, (5 / 12, 3 / 12, 2 / 12, 2 / 12))]
    for target in targets:
        assert_close(target, DARP(task).target)
    assert_close(DARP(task).target, torch.tensor(LABELED_COUNTS, dtype=torch.float64))


def test_rounded_shares_are_scaled_to_the_pool() -> None:
    target = DARP(make_task(), target=(0.3333, 0.3333, 0.3333, 0.0)).target
    assert_close(target, torch.tensor([40 / 3, 40 / 3, 40 / 3, 0], dtype=torch.float64))


def test_a_class_without_labels_gets_no_pseudo_label() -> None:
    darp = DARP(make_task(torch.tensor([0, 0, 1, 2])))
    for probs, index in random_batches(50):
        darp(probs, index)
    darp.refresh()
    assert torch.isfinite(darp.refined).all()
    assert (darp.refined.argmax(1) != 3).all()


def test_class_mix_equals_the_linear_solution_where_that_is_a_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    confusion = torch.eye(5) + 0.2 * torch.rand(5, 5, generator=generator)
    confusion /= confusion.sum(1, keepdim=True)
    truth = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04])
    mean = truth @ confusion
    assert_close(torch.tensor(solve_mix(confusion.tolist(), mean.tolist())), truth, atol=1e-5, rtol=0)
    assert_close(class_mix(confusion, mean), truth, atol=1e-3, rtol=0)
    assert_close(class_mix(7 * confusion, 3 * mean), truth, atol=1e-3, rtol=0)


def test_class_mix_is_a_distribution_where_the_linear_solution_is_not_one() -> None:
    confusion = torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
    assert min(solve_mix(confusion.tolist(), [0.9, 0.05, 0.05])) < 0
    for singular_too in (confusion, torch.full((3, 3), 1 / 3)):
        mix = class_mix(singular_too, torch.tensor([0.9, 0.05, 0.05]))
        assert (mix >= 0).all()
        assert mix.sum().item() == pytest.approx(1)
        assert mix[0] > 0.89


def test_an_estimate_recovers_a_known_mix_of_the_pool_from_a_classifier_that_errs() -> None:
    """Labels are mostly of class 0, the pool mostly of class 3, and both are confused in the same way."""
    generator = torch.Generator().manual_seed(0)
    num_unlabeled, pool_mix = 4000, torch.tensor([0.1, 0.1, 0.2, 0.6])

    def predict(y: Tensor) -> Tensor:
        return 2 * F.one_hot(y, 4) + torch.randn(len(y), 4, generator=generator)

    labels = torch.multinomial(torch.tensor([0.7, 0.1, 0.1, 0.1]), 500, replacement=True, generator=generator)
    darp = DARP(Task(4, num_unlabeled, labels, batch_unlabeled=num_unlabeled), target="estimate")
    for _ in range(200):
        y = labels[torch.randint(len(labels), (64,), generator=generator)]
        darp.supervised(predict(y), y, torch.zeros(1, 4))
    hidden = torch.multinomial(pool_mix, num_unlabeled, replacement=True, generator=generator)
    probs = predict(hidden).softmax(1)
    darp(probs, torch.arange(num_unlabeled))
    darp.refresh()
    assert (probs.mean(0) - pool_mix).abs().max() > 0.1, "what counting predictions would have said"
    assert_close(darp.target / num_unlabeled, pool_mix.double(), atol=0.03, rtol=0)


def test_a_row_of_the_confusion_is_the_fading_mean_of_the_batches_that_have_its_class() -> None:
    darp = DARP(make_task(), target="estimate")
    literal: list[list[Tensor]] = [[] for _ in range(NUM_CLASSES)]
    for seed in range(30):
        logits, y = labeled_batch(3, seed)
        darp.supervised(logits, y, logits)
        for c in set(y.tolist()):
            literal[c].append(logits[y == c].softmax(1).mean(0))
    for c, means in enumerate(literal):
        weights = [0.99**age for age in reversed(range(len(means)))]
        assert 0 < len(means) < 30
        expected = sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / sum(weights)
        assert_close(darp.confusion[c] / darp.confusion[c].sum(), expected)


@pytest.mark.parametrize("target", ["labeled", "estimate"])
def test_the_labelled_loss_is_plain_cross_entropy(target: Any) -> None:
    darp = DARP(make_task(), target=target)
    logits, y = labeled_batch(8, seed=0)
    logits.requires_grad_()
    loss = darp.supervised(logits, y, logits)
    assert torch.equal(loss, F.cross_entropy(logits, y))
    assert loss.requires_grad


def test_only_an_estimate_needs_the_labelled_loss() -> None:
    assert DARP(make_task()).needs == DARP.needs == {"refresh"}
    assert DARP(make_task(), target="estimate").needs == {"refresh", "supervised"}


def test_an_estimate_with_one_label_in_a_class_warns_once_and_uses_the_labelled_shares() -> None:
    task = make_task(torch.tensor([0, 0, 0, 1, 3, 3]))
    with pytest.warns(UserWarning, match=r"classes \[1, 2\] have fewer.*'labeled'.*instead") as caught:
        darp = DARP(task, target="estimate")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert (darp.target_used, darp.needs) == ("labeled", {"refresh"})
    labeled = DARP(task)
    for probs, index in random_batches(10):
        assert torch.equal(darp(probs, index), labeled(probs, index))
        darp.refresh()
        labeled.refresh()


def test_an_estimate_with_two_labels_in_each_class_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DARP(make_task(), target="estimate").target_used == "estimate"


# State


@pytest.mark.parametrize("target", ["labeled", "estimate"])
@pytest.mark.parametrize("stop", [4, 9, 16])
def test_state_dict_between_two_refreshes_continues_bit_for_bit(target: Any, stop: int) -> None:
    def step(darp: DARP, number: int, probs: Tensor, index: Tensor) -> Tensor:
        logits, y = labeled_batch(6, seed=number)
        darp.supervised(logits, y, logits)
        q = darp(probs, index)
        if number % 7 == 0:
            darp.refresh()
        return q

    darp, resumed = DARP(make_task(), target=target), DARP(make_task(), target=target)
    addresses = {name: buffer.data_ptr() for name, buffer in darp.named_buffers()}
    history = list(enumerate(random_batches(24), start=1))
    for number, (probs, index) in history[:stop]:
        step(darp, number, probs, index)
    resumed.load_state_dict(copy.deepcopy(darp.state_dict()))
    for number, (probs, index) in history[stop:]:
        assert torch.equal(step(darp, number, probs, index), step(resumed, number, probs, index))
    for name, value in darp.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert {name: buffer.data_ptr() for name, buffer in darp.named_buffers()} == addresses, "changed in place"
    assert list(darp.parameters()) == []


def test_state_is_two_rows_for_each_sample_and_little_else() -> None:
    state = DARP(Task(10, 50_000, LABELS)).state_dict()
    assert set(state) == {"store", "refined", "active", "column_error"}
    assert sum(tensor.nbytes for tensor in state.values()) == pytest.approx(2 * 50_000 * 10 * 4, rel=1e-3)


@pytest.mark.parametrize("target", ["labeled", (0.1, 0.2, 0.3, 0.4)])
def test_two_steps_and_refreshes_run_on_fake_tensors_so_nothing_reads_a_value_back(target: Any) -> None:
    with FakeTensorMode():
        darp = DARP(make_task(torch.tensor([0, 1, 2, 3])), target=target)
        for _ in range(2):
            q = darp(torch.rand(BATCH, NUM_CLASSES).softmax(1), torch.arange(BATCH))
            assert q.shape == (BATCH, NUM_CLASSES)
            darp.refresh()


def test_an_estimate_reads_no_value_back_but_the_labels_before_training() -> None:
    darp = DARP(make_task(), target="estimate")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for name, buffer in list(darp.named_buffers()):
            setattr(darp, name, mode.from_tensor(buffer))
        for _ in range(2):
            logits, y = torch.rand(6, NUM_CLASSES), torch.zeros(6, dtype=torch.int64)
            darp.supervised(logits, y, logits)
            assert darp(torch.rand(BATCH, NUM_CLASSES).softmax(1), torch.arange(BATCH)).shape == (BATCH, NUM_CLASSES)
            darp.refresh()


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"warmup": -0.1}, "warmup is -0.1"),
        ({"warmup": 1.5}, "warmup is 1.5"),
        ({"warmup": math.nan}, "warmup is nan"),
        ({"every": 0}, "every is 0"),
        ({"iterations": 0}, "iterations is 0"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": -2.0}, "delta is -2.0"),
        ({"delta": math.inf}, "delta is inf"),
        ({"delta": math.nan}, "delta is nan"),
        (
            {"target": "uniform"},
            "target is 'uniform'; expected 'labeled' or 'estimate' or 'oracle' or a list of numbers from 0",
        ),
        ({"target": "oracle"}, "'oracle'.*give the true class counts instead: 4 numbers with the sum 40"),
        ({"target": (0.5, 0.5)}, r"target has 2 numbers, \(0.5, 0.5\); expected 4"),
        ({"target": (20.0, 25.0, -5.0, 0.0)}, r"-5.0, 0.0\); expected .*a list of numbers from 0"),
        ({"target": (20.0, 20.0, math.nan, 0.0)}, r"nan, 0.0\); expected .*a list of numbers"),
        ({"target": (20.0, 20.0, math.inf, 0.0)}, r"inf, 0.0\); expected .*a list of numbers"),
        ({"target": (10.0, 10.0, 10.0, 11.0)}, "sum 41; expected 40.*or 1 for shares"),
        ({"target": (0.3, 0.3, 0.3, 0.2)}, "sum 1.1; expected 40.*or 1 for shares"),
        ({"target": (0.0, 0.0, 0.0, 0.0)}, "sum 0; expected 40.*or 1 for shares"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DARP(make_task(), **options)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_target_that_needs_labels_is_refused_without_any(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        DARP(make_task(labeled_targets))
    DARP(make_task(labeled_targets), target=(10.0, 10.0, 10.0, 10.0))


def test_a_bad_call_changes_nothing() -> None:
    darp = DARP(make_task())
    before = copy.deepcopy(darp.state_dict())
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        darp(torch.full((1, NUM_CLASSES), 0.25), torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        darp(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    for name, value in darp.state_dict().items():
        assert torch.equal(value, before[name]), name
