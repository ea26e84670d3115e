"""SimPro against a literal oracle, classical EM on known likelihoods, and what must hold whatever the input."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.guidances import NoGuidance
from mnar.guidances.simpro import SMALLEST_SHARE, SimPro
from mnar.learners import FixMatch, MixMatch
from mnar.types import Batch, Task
from tests.reference.simpro import LiteralSimPro, bayes, cross_entropy, label_shift_em
from tests.support.drifting import drifting_batches

NUM_CLASSES, NUM_UNLABELED, BATCH = 4, 37, 16
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])
STARTS = ["uniform", "labeled"]
MOMENTA = [0.0, 0.5, 0.99]
MIXES = {"like the labels": (0.05, 0.15, 0.8), "reversed": (0.8, 0.15, 0.05), "a class is absent": (0.9, 0.1, 0.0)}


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, batch_unlabeled=BATCH)


random_batches = partial(drifting_batches, num_classes=NUM_CLASSES, num_unlabeled=NUM_UNLABELED, largest=BATCH)


def gaussian_pool(size: int, mix: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Points of unit Gaussians two apart: exact p(x|y), up to a factor for each x, and the class shares they have."""
    generator = torch.Generator().manual_seed(0)
    label = torch.multinomial(torch.tensor(mix), size, replacement=True, generator=generator)
    x = 2 * label + torch.randn(size, generator=generator)
    log_likelihood = -((x.unsqueeze(1) - 2 * torch.arange(len(mix))) ** 2) / 2
    return log_likelihood.softmax(1), F.one_hot(label, len(mix)).float().mean(0)


def gaussian_task(size: int, batch: int) -> Task:
    return Task(3, size, torch.tensor([0] + 3 * [1] + 16 * [2]), batch_unlabeled=batch)


# The E-step and the closed-form half of the M-step


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("start", STARTS)
def test_pseudo_labels_and_prior_equal_the_literal_version_over_300_steps(momentum: float, start: Any) -> None:
    simpro = SimPro(make_task(), momentum=momentum, start=start)
    oracle = LiteralSimPro(LABELS.tolist(), NUM_CLASSES, momentum=momentum, start=start)
    assert_close(simpro.pool_prior, torch.tensor(oracle.pool_prior))
    for probs, index in random_batches(300):
        assert_close(simpro(probs, index), torch.tensor(oracle(probs.tolist())), atol=1e-5, rtol=1e-3)
        assert_close(simpro.pool_prior, torch.tensor(oracle.pool_prior), atol=1e-5, rtol=1e-3)


def test_the_defaults_are_a_uniform_start_and_a_momentum_of_99_hundredths() -> None:
    simpro, named = SimPro(make_task()), SimPro(make_task(), momentum=0.99, start="uniform")
    for probs, index in random_batches(20):
        assert torch.equal(simpro(probs, index), named(probs, index))


def test_the_first_pseudo_labels_from_a_uniform_start_are_the_predictions() -> None:
    ((probs, index),) = random_batches(1)
    assert_close(SimPro(make_task())(probs, index), probs)


@pytest.mark.parametrize("start", STARTS)
def test_a_whole_set_at_momentum_0_is_classical_em_for_label_shift_over_100_iterations(start: Any) -> None:
    likelihoods, _ = gaussian_pool(200, MIXES["reversed"])
    simpro = SimPro(gaussian_task(200, batch=200), momentum=0.0, start=start)
    expected = label_shift_em(likelihoods.tolist(), simpro.pool_prior.tolist(), iterations=100)
    for _ in range(100):
        simpro(likelihoods, torch.arange(200))
    assert_close(simpro.pool_prior, torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("mix", MIXES)
def test_with_exact_likelihoods_the_prior_becomes_the_mix_of_the_pool(mix: str, start: Any) -> None:
    likelihoods, shares = gaussian_pool(50_000, MIXES[mix])
    simpro = SimPro(gaussian_task(50_000, batch=448), start=start)
    generator = torch.Generator().manual_seed(1)
    for _ in range(1_000):
        index = torch.randint(50_000, (448,), generator=generator)
        simpro(likelihoods[index], index)
    assert_close(simpro.pool_prior, shares, atol=0.02, rtol=0)


def test_the_mean_of_predictions_is_not_the_mix_of_the_pool_which_is_why_em_is_needed() -> None:
    likelihoods, shares = gaussian_pool(50_000, MIXES["reversed"])
    assert (likelihoods.mean(0) - shares).abs().max() > 0.05


def test_the_mix_of_the_pool_is_a_fixed_point() -> None:
    likelihoods, shares = gaussian_pool(20_000, MIXES["reversed"])
    simpro = SimPro(gaussian_task(20_000, batch=20_000), momentum=0.0)
    simpro.pool_prior.copy_(shares)
    simpro(likelihoods, torch.arange(20_000))
    assert_close(simpro.pool_prior, shares, atol=0.005, rtol=0)


def test_a_class_that_had_vanished_comes_back() -> None:
    simpro = SimPro(make_task(), momentum=0.5)
    first, last = (torch.eye(NUM_CLASSES)[[c] * BATCH] for c in (0, 3))
    for _ in range(1_000):
        simpro(first, torch.arange(BATCH))
    assert simpro.pool_prior[3].item() == pytest.approx(SMALLEST_SHARE, rel=1e-3)
    simpro(last, torch.arange(BATCH))
    assert simpro.pool_prior[3].item() == pytest.approx(0.5, rel=1e-3)
    assert simpro.pool_prior.sum().item() == pytest.approx(1)


# The half of the M-step that is a loss


def test_the_labelled_loss_is_cross_entropy_under_the_labelled_prior_with_its_gradient() -> None:
    simpro = SimPro(make_task())
    logits = torch.randn(5, NUM_CLASSES, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.tensor([0, 3, 1, 0, 2])
    loss = simpro.supervised(logits, y, logits_weak=torch.zeros(BATCH, NUM_CLASSES))
    prior = [0.5, 0.3, 0.1, 0.1]
    assert loss.item() == pytest.approx(cross_entropy(logits.tolist(), prior, y.tolist()), rel=1e-5)

    (gradient,) = torch.autograd.grad(loss, logits)
    posterior = torch.tensor([bayes([math.exp(f) for f in row], prior) for row in logits.tolist()])
    assert_close(gradient, (posterior - F.one_hot(y, NUM_CLASSES)) / len(y))


def test_in_pool_logits_is_the_prior_that_the_step_has_updated() -> None:
    simpro = SimPro(make_task(), momentum=0.5)
    oracle = LiteralSimPro(LABELS.tolist(), NUM_CLASSES, momentum=0.5)
    logits = torch.randn(6, NUM_CLASSES, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for probs, index in random_batches(5):
        simpro(probs, index)
        oracle(probs.tolist())
        y = torch.tensor([0, 1, 2, 3, 0, 1])
        loss = F.cross_entropy(simpro.pool_logits(logits), y)
        assert loss.item() == pytest.approx(cross_entropy(logits.tolist(), oracle.pool_prior, y.tolist()), rel=1e-4)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(gradient).all()


def test_pool_logits_takes_copies_of_a_batch_too() -> None:
    simpro = SimPro(make_task(), start="labeled")
    copies = torch.randn(3, 6, NUM_CLASSES, generator=torch.Generator().manual_seed(0))
    assert torch.equal(simpro.pool_logits(copies), torch.stack([simpro.pool_logits(logits) for logits in copies]))


def test_a_pseudo_label_is_the_softmax_of_the_pool_logits_where_the_prior_stays() -> None:
    simpro = SimPro(make_task(), start="labeled")
    logits = torch.randn(6, NUM_CLASSES, generator=torch.Generator().manual_seed(0))
    expected = simpro.pool_logits(logits).softmax(1)
    assert_close(simpro(logits.softmax(1), torch.arange(6)), expected)


def test_where_pool_and_labels_share_a_uniform_prior_fixmatch_loses_what_it_loses_without_guidance() -> None:
    task = make_task(torch.arange(NUM_CLASSES))
    generator = torch.Generator().manual_seed(0)
    x, weak, strong = (torch.randn(n, 5, generator=generator) for n in (4, BATCH, BATCH))
    batch = Batch(x, torch.arange(4), torch.arange(4), {"weak": weak, "strong": strong}, torch.arange(BATCH))
    network = torch.nn.Linear(5, NUM_CLASSES)
    simpro = SimPro(task, momentum=1 - 1e-7)
    loss, expected = (
        FixMatch(task, guidance, threshold=0.4)(network, batch) for guidance in (simpro, NoGuidance(task))
    )
    assert expected.logs["mask_rate"] > 0
    assert_close(loss.loss, expected.loss)


def test_a_learner_whose_losses_have_no_place_for_the_priors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MixMatch does not support SimPro.*pool_logits.*supervised"):
        MixMatch(make_task(), SimPro(make_task()))


@pytest.mark.parametrize("start", STARTS)
def test_a_class_without_labels_has_finite_losses_and_pseudo_labels(start: Any) -> None:
    simpro = SimPro(make_task(torch.tensor([0, 0, 1, 1])), start=start)
    assert simpro.labeled_prior.tolist() == pytest.approx([0.5, 0.5, SMALLEST_SHARE, SMALLEST_SHARE], rel=1e-4)
    logits = torch.zeros(2, NUM_CLASSES, requires_grad=True)
    loss = simpro.supervised(logits, torch.tensor([0, 3]), logits)
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    for probs, index in random_batches(20):
        q = simpro(probs, index)
        assert torch.isfinite(q).all()
        assert_close(q.sum(1), torch.ones(len(q)))
        assert torch.isfinite(simpro.pool_logits(probs.log())).all()


# Logs, several processes, overflow


def test_the_log_is_the_largest_share_and_the_share_of_the_pool_that_the_labels_do_not_explain() -> None:
    simpro = SimPro(make_task())
    simpro.pool_prior.copy_(torch.tensor([0.1, 0.3, 0.2, 0.4]))  # the labels: 0.5, 0.3, 0.1, 0.1
    logs = simpro.logs()
    assert logs["largest_pool_share"].item() == pytest.approx(0.4)
    assert logs["distance_from_labels"].item() == pytest.approx(0.4)
    assert SimPro(make_task(), start="labeled").logs()["distance_from_labels"] == 0


def test_several_processes_average_their_posteriors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it always has the same posteriors."""
    other = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
    monkeypatch.setattr(distributed, "gather", lambda local: torch.cat([local, other]))
    simpro = SimPro(make_task(), momentum=0.0)
    simpro(torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.1, 0.1, 0.6, 0.2]]), torch.tensor([0, 1]))
    assert_close(simpro.pool_prior, torch.tensor([0.4, 0.2, 0.25, 0.15]))


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_batch_that_is_not_a_number_leaves_the_prior_as_it_was(momentum: float, broken: float) -> None:
    simpro = SimPro(make_task(), momentum=momentum)
    for probs, index in random_batches(3):
        simpro(probs, index)
    before = simpro.pool_prior.clone()
    simpro(torch.full((3, NUM_CLASSES), broken), torch.arange(3))
    assert_close(simpro.pool_prior, before)


def test_a_row_that_is_not_a_number_counts_as_the_prior_and_the_others_as_they_are() -> None:
    simpro, oracle = SimPro(make_task(), momentum=0.5), SimPro(make_task(), momentum=0.5)
    ((probs, _),) = random_batches(1)
    broken = torch.cat([probs, torch.full((1, NUM_CLASSES), math.nan)])
    # From a uniform start the posterior of a uniform row is the prior.
    spared = torch.cat([probs, torch.full((1, NUM_CLASSES), 0.25)])
    index = torch.arange(len(broken))
    assert_close(simpro(broken, index)[:-1], oracle(spared, index)[:-1])
    assert_close(simpro.pool_prior, oracle.pool_prior)


# State


def test_state_is_the_prior_of_the_pool_alone() -> None:
    assert set(SimPro(make_task()).state_dict()) == {"pool_prior"}


@pytest.mark.parametrize("momentum", MOMENTA)
def test_state_dict_in_the_middle_of_a_sequence_continues_bit_for_bit(momentum: float) -> None:
    simpro, resumed = (SimPro(make_task(), momentum=momentum, start="labeled") for _ in range(2))
    addresses = {name: buffer.data_ptr() for name, buffer in simpro.named_buffers()}
    history = list(random_batches(24))
    for probs, index in history[:12]:
        simpro(probs, index)
    resumed.load_state_dict(copy.deepcopy(simpro.state_dict()))
    for probs, index in history[12:]:
        assert torch.equal(simpro(probs, index), resumed(probs, index.int()))
        assert torch.equal(simpro.pool_logits(probs.log()), resumed.pool_logits(probs.log()))
    assert {name: buffer.data_ptr() for name, buffer in simpro.named_buffers()} == addresses, "changed in place"
    assert list(simpro.parameters()) == []
    assert simpro.labeled_prior.tolist() == pytest.approx([0.5, 0.3, 0.1, 0.1]), "a start from the labels is a copy"


@pytest.mark.parametrize("start", STARTS)
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(start: Literal["uniform", "labeled"]) -> None:
    with FakeTensorMode():
        simpro = SimPro(make_task(torch.tensor([0, 1, 2, 3])), start=start)
        for _ in range(2):
            logits = torch.rand(BATCH, NUM_CLASSES)
            assert simpro.supervised(logits, torch.zeros(BATCH, dtype=torch.int64), logits).shape == ()
            assert simpro(logits.softmax(1), torch.arange(BATCH)).shape == (BATCH, NUM_CLASSES)
            assert simpro.pool_logits(logits).shape == (BATCH, NUM_CLASSES)
            assert all(value.shape == () for value in simpro.logs().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_handled_in_float32_without_gradient(dtype: torch.dtype) -> None:
    simpro, expected = SimPro(make_task()), SimPro(make_task())
    for probs, index in random_batches(5):
        half = probs.to(dtype)
        before = half.clone()
        q = simpro(half.requires_grad_(), index)
        assert q.dtype == torch.float32
        assert not q.requires_grad
        assert torch.equal(q, expected(before.float(), index))
        assert torch.equal(half, before)


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"momentum": math.nan}, "momentum is nan"),
        ({"start": "labelled"}, "unknown start 'labelled'.*'uniform', 'labeled'"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SimPro(make_task(), **options)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_task_without_labels_is_refused_with_what_to_give(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        SimPro(make_task(labeled_targets))


def test_a_bad_call_changes_nothing() -> None:
    simpro = SimPro(make_task())
    before = simpro.pool_prior.clone()
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        simpro(torch.eye(NUM_CLASSES)[:1], torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        simpro(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    assert torch.equal(simpro.pool_prior, before)
